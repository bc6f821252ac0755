"""Loading, wrapping and fingerprints."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch
from transformers import Llama4ForConditionalGeneration, Mamba2Config

from agentkv.errors import InvalidInput, ModelNotFound, UnsupportedModel
from agentkv.models.hf import LoadedModel, fingerprint, load, wrap
from agentkv.models.layouts import rope_tables
from tests.models import tiny_config, tiny_model, tiny_tokenizer


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    directory = tmp_path / "tiny"
    tiny_model(dtype=torch.float32).save_pretrained(directory)
    tiny_tokenizer().save_pretrained(directory)
    return directory


def edit_config(directory: Path, **changes: object) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_saved_model_comes_back(saved: Path) -> None:
    loaded = load(saved)
    assert loaded.name == "tiny"
    assert (loaded.dtype, loaded.device) == (torch.float32, torch.device("cpu"))
    assert not loaded.model.training
    assert loaded.tokenizer("w3 w4")["input_ids"] == [3, 4]
    original = tiny_model(dtype=torch.float32)
    for name, parameter in loaded.model.named_parameters():
        assert torch.equal(parameter, original.get_parameter(name))
    assert torch.equal(rope_tables(loaded.model)[""], rope_tables(original)[""])


def test_dtype_is_the_callers(saved: Path) -> None:
    assert load(str(saved), dtype=torch.bfloat16).dtype == torch.bfloat16


def test_fingerprint_follows_the_weights_not_the_place(saved: Path, tmp_path: Path) -> None:
    moved = saved.rename(tmp_path / "elsewhere")
    loaded = load(moved)
    assert loaded.fingerprint == load(moved).fingerprint
    assert loaded.fingerprint == wrap(tiny_model(dtype=torch.float32), tiny_tokenizer()).fingerprint
    assert len(loaded.fingerprint) == 40


class _Processor:
    """What a processor is to a fingerprint."""

    def __init__(self, **settings: object) -> None:
        self.settings = settings

    def to_dict(self) -> dict[str, object]:
        return self.settings


def test_everything_that_changes_the_kv_changes_the_fingerprint() -> None:
    tokenizer = tiny_tokenizer()
    other_words = tiny_tokenizer()
    other_words.add_tokens(["w200"])
    rope = {"rope_type": "default", "rope_theta": 5e5}
    bent = tiny_model()
    bent.model.rotary_emb.inv_freq[0] *= 1.5
    biased = tiny_model("deepseek_v3")
    biased.model.layers[1].mlp.gate.e_score_correction_bias += 1
    found = [
        fingerprint(tiny_model(), tokenizer),
        fingerprint(tiny_model(seed=1), tokenizer),
        fingerprint(tiny_model(dtype=torch.float32), tokenizer),
        fingerprint(tiny_model(rope_parameters=rope), tokenizer),
        fingerprint(tiny_model(rms_norm_eps=1e-4), tokenizer),
        fingerprint(tiny_model(), other_words),
        fingerprint(tiny_model()),
        fingerprint(bent, tokenizer),
        fingerprint(tiny_model(), tokenizer, _Processor(size=4)),
        fingerprint(tiny_model(), tokenizer, _Processor(size=8)),
        fingerprint(tiny_model("deepseek_v3"), tokenizer),
        fingerprint(biased, tokenizer),  # a buffer that is saved with the weights
    ]
    assert len(set(found)) == len(found)


class _Settings:
    """An object that JSON has no form for, and whose repr is an address."""

    def __init__(self, size: int) -> None:
        self.size = size


def test_a_fingerprint_knows_no_addresses() -> None:
    """Another process has to find the same one."""
    prints = [fingerprint(tiny_model(), None, _Processor(part=_Settings(n))) for n in (1, 1, 2)]
    assert prints[0] == prints[1] != prints[2]


class _Adapted(torch.nn.Linear):
    """A layer as peft leaves it: which adapters are on, and their scales, are no weights."""

    def __init__(self, active: str, scale: float) -> None:
        super().__init__(2, 2)
        self.active_adapters, self.merged_adapters, self.disable_adapters = [active], list[str](), False
        self.scaling = {"a": scale, "b": scale}
        torch.nn.init.zeros_(self.weight)
        torch.nn.init.zeros_(self.bias)


def test_adapters_enter_the_fingerprint() -> None:
    def adapted(active: str, scale: float) -> str:
        model = tiny_model()
        model.extra = _Adapted(active, scale)
        return fingerprint(model)

    assert adapted("a", 1.0) == adapted("a", 1.0)
    assert len({fingerprint(tiny_model()), *(adapted(n, s) for n in "ab" for s in (1.0, 2.0))}) == 5


def test_using_the_tokenizer_leaves_the_fingerprint_alone() -> None:
    model, tokenizer = tiny_model(), tiny_tokenizer()
    before = fingerprint(model, tokenizer)
    tokenizer(["w3", "w3 w4"], padding=True, truncation=True, max_length=5)
    assert fingerprint(model, tokenizer) == before


def test_wrap_changes_nothing() -> None:
    model = tiny_model()
    before = (set(vars(model)), model.config.to_dict(), [p.requires_grad for p in model.parameters()])
    loaded = wrap(model)
    assert loaded.model is model
    assert loaded.tokenizer is None
    assert loaded.name == "llama"
    assert before == (set(vars(model)), model.config.to_dict(), [p.requires_grad for p in model.parameters()])


def test_a_model_without_weights_is_refused() -> None:
    with pytest.raises(InvalidInput, match="parameters on meta"):
        wrap(tiny_model().to("meta"))


def test_a_model_without_a_head_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="LlamaModel without a body beside its head"):
        wrap(tiny_model().model)


def test_a_model_without_a_shared_rotary_table_is_refused() -> None:
    model = tiny_model()
    del model.model.rotary_emb
    with pytest.raises(UnsupportedModel, match="without rotary_emb"):
        wrap(model)


@pytest.fixture
def saved_llava(tmp_path: Path) -> Path:
    """A wrapper of vision and text, with a tokenizer and no processor."""
    directory = tmp_path / "llava"
    tiny_model("llava", torch.float32).save_pretrained(directory)
    tiny_tokenizer().save_pretrained(directory)
    return directory


def test_a_wrapper_loads_with_its_vision(saved_llava: Path) -> None:
    loaded = load(saved_llava)
    assert type(loaded.model).__name__ == "LlavaForConditionalGeneration"
    assert loaded.layout.slots[0].heads == 3
    assert loaded.processor is None  # text alone runs
    assert loaded.fingerprint == wrap(tiny_model("llava", torch.float32), tiny_tokenizer()).fingerprint


def test_the_fingerprint_of_a_wrapper_covers_its_vision(saved_llava: Path) -> None:
    model = load(saved_llava).model
    before = fingerprint(model)
    with torch.no_grad():
        next(model.model.vision_tower.parameters()).mul_(2)
    assert fingerprint(model) != before


def test_a_processor_is_loaded_where_there_is_one(saved_llava: Path) -> None:
    pytest.importorskip("PIL")
    plain = load(saved_llava)
    from transformers import CLIPImageProcessor, LlavaProcessor

    images = CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    LlavaProcessor(images, tiny_tokenizer(), patch_size=8).save_pretrained(saved_llava)
    loaded = load(saved_llava)
    assert type(loaded.processor).__name__ == "LlavaProcessor"
    assert loaded.fingerprint != plain.fingerprint
    assert load(saved_llava).fingerprint == loaded.fingerprint


def test_a_broken_processor_is_not_passed_over(saved_llava: Path) -> None:
    (saved_llava / "processor_config.json").write_text("{ broken")
    with pytest.raises(ModelNotFound, match="could not be read"):
        load(saved_llava)


def test_llama4_loads_as_text(tmp_path: Path) -> None:
    """Its wrapper fails at the end of every forward in transformers 5.24; the text model inside does not."""
    directory = tmp_path / "llama4"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        whole = Llama4ForConditionalGeneration(tiny_config("llama4")).eval()
    whole.save_pretrained(directory)
    tiny_tokenizer().save_pretrained(directory)
    with pytest.raises(AttributeError, match="image_outputs"), torch.no_grad():
        whole(torch.tensor([[3, 4]]))
    with pytest.raises(UnsupportedModel, match="Llama4ForConditionalGeneration without a body"):
        wrap(whole)
    loaded = load(directory)
    assert type(loaded.model).__name__ == "Llama4ForCausalLM"
    inside = whole.language_model.model.embed_tokens.weight
    assert torch.equal(loaded.model.model.embed_tokens.weight, inside)


def test_offline_hub_id() -> None:
    with pytest.raises(ModelNotFound, match="'nobody/no-model' that could not be fetched") as caught:
        load("nobody/no-model")
    assert "embedded.ensure()" in caught.value.do


@pytest.mark.parametrize("source", ["/no/such/place", "./none", Path("none")])
def test_missing_directory(source: str | Path) -> None:
    with pytest.raises(ModelNotFound, match="which does not exist"):
        load(source)


def test_directory_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"a directory without config\.json"):
        load(tmp_path)


def test_a_file(saved: Path) -> None:
    with pytest.raises(ModelNotFound, match="pass the directory"):
        load(saved / "model.safetensors")


def test_no_weights(saved: Path) -> None:
    (saved / "model.safetensors").unlink()
    with pytest.raises(ModelNotFound, match="could not be read"):
        load(saved)


def test_half_written_weights(saved: Path) -> None:
    path = saved / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelNotFound, match="could not be read"):
        load(saved)


def test_a_missing_layer_is_not_filled_with_noise(saved: Path) -> None:
    edit_config(saved, num_hidden_layers=5)
    with pytest.raises(ModelNotFound, match=r"lacks 9 weights, among them model\.layers\.4"):
        load(saved)


def test_no_tokenizer(saved: Path) -> None:
    for path in saved.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(ModelNotFound):
        load(saved)


def test_weights_of_another_shape(saved: Path) -> None:
    edit_config(saved, intermediate_size=48)
    with pytest.raises(ModelNotFound, match="could not be read"):
        load(saved)


def test_the_config_is_judged_before_weights_are_read(saved: Path) -> None:
    (saved / "model.safetensors").unlink()
    Mamba2Config().save_pretrained(saved)
    with pytest.raises(UnsupportedModel, match="recurrent"):
        load(saved)


def test_config_of_an_unknown_type(saved: Path) -> None:
    edit_config(saved, model_type="model_of_tomorrow")
    with pytest.raises(UnsupportedModel, match="does not accept"):
        load(saved)


def test_inconsistent_config(saved: Path) -> None:
    edit_config(saved, num_attention_heads=7)
    with pytest.raises(UnsupportedModel, match="does not accept"):
        load(saved)


def test_embedded_model(embedded: LoadedModel) -> None:
    layout = embedded.layout
    assert (layout.layers, layout.query_heads, layout.max_positions) == (30, 9, 8192)
    assert [(slot.heads, slot.dim) for slot in layout.slots] == [(3, 64), (3, 64)]
    assert embedded.dtype == torch.float32
    started = time.perf_counter()
    assert fingerprint(embedded.model, embedded.tokenizer) == embedded.fingerprint
    assert time.perf_counter() - started < 3.0  # 0.35 s on an idle machine
