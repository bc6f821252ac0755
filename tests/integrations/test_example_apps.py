"""The material of the agents' examples: the office app, its tasks, the clip, and models that look at them."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkv.errors import InvalidInput
from agentkv.testing import recording_engine
from bench.models import segments, vlm
from examples.agents import vision
from examples.agents.clip import STAGE, Clip
from examples.agents.desktop import LINES, Action, App, Back, BadAction, Click, Scroll, Type, parse
from examples.agents.office import Mail
from examples.agents.office_tasks import NotAnswered, follow, tasks
from examples.agents.widgets import LINE, WIDTH

SEEDS = range(6)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_task_is_reached_by_its_solution_and_not_before(seed: int) -> None:
    found = tasks(App(seed))
    assert len(found) == 8
    assert len({task.instruction for task in found}) == 8
    for task in found:
        app = App(seed)
        for action in task.solution:
            assert not task.reached(app)
            app.do(action)
        assert task.reached(app)
        assert not any(other.reached(app) for other in found if other is not task)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_plan_whose_questions_are_answered_rightly_reaches_its_task(seed: int) -> None:
    for task in tasks(App(seed)):
        app, asked = App(seed), list[tuple[str, str]]()
        mail = next((m for m in app.office.mails if m.sender == task.shows), None)

        def ask(question: str, of: str, mail: Mail | None = mail, asked: Any = asked) -> str:
            asked.append((question, of))
            assert mail is not None
            return f"It is {mail.about}, I think."

        assert [*follow(app, task, ask)] == list(task.plan)
        assert task.reached(app)
        assert [of for _, of in asked] == [task.shows] * bool(task.shows)


def test_an_answer_that_names_nothing_ends_a_plan() -> None:
    app = App(0)
    pay = next(task for task in tasks(app) if task.goal.paid)
    with pytest.raises(NotAnswered, match="I do not know"):
        list(follow(app, pay, lambda question, of: "I do not know."))
    app = App(0)
    delete = next(task for task in tasks(app) if task.goal.deleted)
    with pytest.raises(BadAction, match="nothing"):
        list(follow(app, delete, lambda question, of: "nothing.txt"))
    assert app.facts == App(0).facts


@pytest.mark.parametrize("seed", SEEDS)
def test_a_task_is_not_reached_with_anything_else_done(seed: int) -> None:
    first = next(task for task in tasks(App(seed)) if task.goal.paid)
    second = next(task for task in tasks(App(seed)) if task.goal.notes)
    app = App(seed)
    for action in (*first.solution, Click("Home"), *second.solution):
        app.do(action)
    assert not first.reached(app)
    assert not second.reached(app)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_task_needs_is_on_the_screen_that_it_names_alone(seed: int) -> None:
    """Where the last click of the way, or the note, is not told by the instruction."""
    for task in tasks(App(seed)):
        if not task.shows:
            continue
        app = App(seed)
        texts = []
        for action in task.solution:
            app.do(action)
            texts.append((app.view.item, app.screen().text))
        (mail,) = [text for item, text in texts if item == task.shows]
        needed = [word for word in _needed(task.solution, app) if word in mail]
        assert needed
        assert not any(word in task.instruction for word in needed)


def _needed(solution: tuple[Action, ...], app: App) -> list[str]:
    """The company, file or code by which a solution goes on."""
    typed = [action.text for action in solution if isinstance(action, Type)]
    clicked = {action.label for action in solution if isinstance(action, Click)}
    suppliers = [invoice.supplier for invoice in app.office.invoices if invoice.supplier in clicked]
    return typed + suppliers + [name for name in app.office.files if name in clicked]


ACTIONS = st.one_of(
    st.integers(0, 20),
    st.builds(Type, st.text(st.characters(max_codepoint=300), max_size=30)),
    st.builds(Scroll, st.integers(-2, 2)),
    st.just(Back()),
    st.builds(Click, st.text(max_size=3)),
)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 5), st.lists(ACTIONS, max_size=25))
def test_any_actions_leave_a_screen_that_can_be_used(seed: int, drawn: list[int | Action]) -> None:
    """And one that is refused changes nothing."""
    app = App(seed)
    for choice in drawn:
        screen = app.screen()
        labels = screen.clickable
        action = Click(labels[choice % len(labels)]) if isinstance(choice, int) else choice
        before = (app.view, app.facts)
        refused = _refusal(app, action)
        assert refused is None or ("expected" in refused and (app.view, app.facts) == before)
        after = app.screen()
        assert after.clickable
        assert len(set(after.clickable)) == len(after.clickable)
        assert len(after.lines) <= LINES


def _refusal(app: App, action: Action) -> str | None:
    try:
        app.do(action)
    except BadAction as error:
        return str(error)
    return None


def test_a_screenshot_has_one_size_and_is_the_screen_s() -> None:
    app = App(1)
    home = app.screenshot()
    app.do(Click("Mail"))
    mail = app.screenshot()
    app.do(Back())
    assert home.size == mail.size == (WIDTH, LINE * (LINES + 1) + LINE // 2)
    assert app.screenshot().tobytes() == home.tobytes() != mail.tobytes()


def test_every_screen_comes_apart_into_its_lines_and_icons() -> None:
    """What the encoder needs: boxes are no ink, columns are apart, and an icon is told from a text."""
    for task in tasks(App(2)):
        app = App(2)
        for action in task.solution:
            app.do(action)
            screen = app.screen()
            rows = segments.rows(app.screenshot())
            assert len(rows) == 1 + len(screen.lines)
            for row, line in zip(rows[1:], screen.lines, strict=True):
                texts = [widget for widget in line.widgets if widget.label]
                assert [part.coloured for part in row] == [True] * bool(line.icon) + [False] * len(texts)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("click Mail", Click("Mail")),
        (" Click  budget.txt\n", Click("budget.txt")),
        ("type 47 11", Type("47 11")),
        ("scroll down", Scroll(1)),
        ("scroll up", Scroll(-1)),
        ("back", Back()),
    ],
)
def test_an_action_is_read_from_text(text: str, action: Action) -> None:
    assert parse(text) == action


@pytest.mark.parametrize(
    "text", ["", "click", "type ", "scroll", "scroll left", "back home", "press Mail", "{}"]
)
def test_a_text_that_is_no_action_is_refused(text: str) -> None:
    with pytest.raises(BadAction, match="expected click LABEL"):
        parse(text)


@pytest.mark.parametrize("seconds", [60, 61, 300, 1801])
@pytest.mark.parametrize("seed", range(3))
def test_a_clip_is_whole_and_its_questions_have_one_answer(seed: int, seconds: int) -> None:
    clip = Clip(seed, seconds)
    for events in (clip.scenes, clip.counts):
        assert [events[0].start, events[-1].stop] == [0, seconds]
        assert all(a.stop == b.start and a.start < a.stop for a, b in pairwise(events))
    assert max(len(clip.stage(second)) for second in range(seconds)) <= STAGE
    assert len({visit.icon for visit in clip.visits}) == len(clip.visits)
    assert clip.visits[-1].stop > seconds * 0.7
    questions = clip.questions()
    assert questions
    for question in questions:
        assert question.answer in question.options
        assert len(set(question.options)) == len(question.options) > 1
        assert question.shown
        assert question.shown.stop <= seconds - 10


@pytest.mark.parametrize("seed", range(3))
def test_an_answer_is_to_be_seen_where_it_is_said_to_be(seed: int) -> None:
    clip = Clip(seed, 240)
    for question in clip.questions():
        for second in (question.shown[0], question.shown[-1]):
            words = " ".join(clip.text(second)) + " " + " ".join(icon.words for icon in clip.stage(second))
            assert question.answer in words.replace("  ", " ").split()
        subject = question.text.removesuffix("?").split()[-2:]
        elsewhere = [s for s in range(240) if f" {' '.join(subject)}" in [i.words for i in clip.stage(s)]]
        if elsewhere:  # a question about one kind of icon: it is there in no other stretch
            assert set(question.shown) <= set(elsewhere)


def test_frames_are_drawn_alike_and_come_apart() -> None:
    clip = Clip(1, 120)
    assert clip.frame(30).tobytes() == Clip(1, 120).frame(30).tobytes() != clip.frame(31).tobytes()
    for second in range(0, 120, 7):
        rows = segments.rows(clip.frame(second))
        assert [part.coloured for row in rows[:3] for part in row] == [False] * 3
        assert [part.coloured for row in rows[3:] for part in row] == [True] * len(clip.stage(second))
    with pytest.raises(IndexError):
        clip.frame(120)
    with pytest.raises(ValueError, match="60"):
        Clip(1, 59)


def test_a_model_that_was_not_made_in_closed_form_spells_nothing() -> None:
    with recording_engine() as engine, pytest.raises(InvalidInput, match="closed-form"):
        vision.spelled(engine, App(0).screenshot())


@pytest.mark.slow
def test_the_tiny_model_reads_every_label_and_recalls_a_screenshot_without_looking_again() -> None:
    torch.set_num_threads(1)
    app = App(1)
    with vision.engine(vision.TINY) as eyes:
        for task in tasks(app)[:3]:
            app = App(1)
            for action in task.solution:
                app.do(action)
                said = vision.spelled(eyes, app.screenshot())
                assert all(label in said for label in app.screen().clickable)
        window = eyes.window()
        window.append("You use an office app.", kind="system", pin=True)
        shot = window.append(app.screenshot())
        window.append("The next screen follows.")
        window.commit()
        runs = eyes.tower.runs
        window.evict(shot)
        window.commit()
        window.recall(shot)
        window.commit()
        assert eyes.tower.runs == runs
        assert window.audit().kl < 0.1


def test_words_are_tokens_of_their_own_and_icons_two() -> None:
    """The order of the pieces, without the encoders."""
    from bench.models import vlm_words

    class Screens:
        placeholder_id = 3

        class reader:  # noqa: N801
            @staticmethod
            def read(image: object) -> tuple[str, None]:
                return "<|image_pad|> a", None

        @staticmethod
        def icon(segment: segments.Segment) -> torch.Tensor:
            return torch.full((2, 1), -1.0)

        @staticmethod
        def digest() -> bytes:
            return b"d"

    asked: list[str] = []

    def tokenizer(text: str, **settings: bool) -> dict[str, list[int]]:
        assert settings == {"add_special_tokens": False, "split_special_tokens": True}
        asked.append(text)
        return {"input_ids": [len(word) for word in text.split()]}

    table = torch.arange(40.0)[:, None]
    words = vlm_words.WordVision(Screens(), tokenizer, table)  # type: ignore[arg-type]
    icon, rng = vlm.drawing.Icon("red", "star"), random.Random(0)
    rows = [vlm.drawing.Row("pilot", icon), vlm.drawing.Row("Total")]
    found = words.encode(vlm.drawing.screenshot(rows, rng))
    assert asked == ["<|image_pad|> a", "\n<|image_pad|> a"]
    assert found[:, 0].tolist() == [13, 1, -1, -1, 13, 1]
    assert words.placeholder_id == 3
    assert words.digest() != Screens.digest()
