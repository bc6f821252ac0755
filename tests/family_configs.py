"""Fields of tiny configs, one entry per model type that loads; `tests.models.tiny_config` builds them.

Heads are odd in number and layers differ from heads, so that a swapped axis cannot pass. Sliding windows are
shorter than the tests' texts, and expert counts are small.
"""

from __future__ import annotations

from typing import Any

VOCAB = 97
SLIDING = 13
"""Rows a sliding layer sees: odd, and less than most messages of the tests."""

_TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}

BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 72,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 4096,
    "initializer_range": 0.2,
    **_TOKENS,
}

_SLIDING = {"sliding_window": SLIDING}
_FULL = "full_attention"
_SLIDES = "sliding_attention"

_LATENT: dict[str, Any] = {
    "num_attention_heads": 5,
    "num_key_value_heads": 5,
    "hidden_size": 80,
    "kv_lora_rank": 20,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 14,
}
"""Multi-head latent attention: 20 + 8 numbers a token; keys of 20 dims, values of 14."""

_EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "num_local_experts": 4}
_ROUTED: dict[str, Any] = {
    "num_experts_per_tok": 2,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
}
_QUERY_SCALE = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 1024,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}

TEXT: dict[str, dict[str, Any]] = {
    "llama": {},
    "internlm3": {"head_dim": 8},
    "mistral": _SLIDING,
    "qwen2": {
        "use_sliding_window": True,
        "max_window_layers": 2,
        **_SLIDING,
    },
    "qwen3": {"head_dim": 16},
    "stablelm": {"hidden_size": 144, "qk_layernorm": True},
    "phi": {"hidden_size": 144},
    "phi3": {"sliding_window": None, "original_max_position_embeddings": 4096},
    "persimmon": {"hidden_size": 144, "num_key_value_heads": None},
    "olmo2": {},
    "granite": {"attention_multiplier": 0.2, "residual_multiplier": 0.7, "logits_scaling": 2.0},
    "gpt_neox": {"hidden_size": 80, "num_attention_heads": 5, "num_key_value_heads": None},
    "minimax_m2": {
        "head_dim": 16,
        **_EXPERTS,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
    },
    "glm4": {"head_dim": 16, "num_key_value_heads": 3},
    "glm4_moe": {"head_dim": 16, "use_qk_norm": True, **_ROUTED},
    "cohere2": {**_SLIDING, "layer_types": [_SLIDES, _SLIDES, _SLIDES, _FULL]},
    "smollm3": {"no_rope_layers": [1, 0, 1, 1], "use_sliding_window": True, **_SLIDING},
    "exaone4": {**_SLIDING, "sliding_window_pattern": 2, "layer_types": [_SLIDES, _FULL, _SLIDES, _FULL]},
    "gemma2": {"head_dim": 8, "query_pre_attn_scalar": 11, "attn_logit_softcapping": 2.0, **_SLIDING},
    "gemma3_text": {
        "head_dim": 8,
        "query_pre_attn_scalar": 11,
        "layer_types": [_SLIDES, _SLIDES, _FULL, _SLIDES],
        "rope_parameters": {
            _SLIDES: {"rope_type": "default", "rope_theta": 1e4},
            _FULL: {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        },
        **_SLIDING,
    },
    "gpt_oss": {"head_dim": 8, **_EXPERTS, **_SLIDING},
    "deepseek_v2": {**_LATENT, **_ROUTED},
    "deepseek_v3": {**_LATENT, **_ROUTED, "n_group": 2, "topk_group": 1},
    "glm4_moe_lite": {**_LATENT, **_ROUTED, "first_k_dense_replace": None},
    "minicpm3": _LATENT,
    "ministral3": {"head_dim": 8, "rope_parameters": _QUERY_SCALE},
    "mistral4": {**_LATENT, **_ROUTED, "rope_parameters": _QUERY_SCALE},
    "llama4_text": {
        "head_dim": 8,
        "num_local_experts": 4,
        "num_experts_per_tok": 1,
        "intermediate_size_mlp": 40,
        "no_rope_layers": [1, 0, 1, 1],
        "attention_chunk_size": 4096,
        "floor_scale": 4096,
    },
}

_SIGLIP = {
    "model_type": "siglip_vision_model",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
}
_QWEN_VISION = {
    "depth": 1,
    "hidden_size": 32,
    "embed_dim": 16,
    "num_heads": 2,
    "out_hidden_size": 72,
    "intermediate_size": 16,
    "patch_size": 4,
}
_GLM_VISION = {**_QWEN_VISION, "hidden_size": 32, "image_size": 16, "out_hidden_size": 144}

_MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
WRAPPERS: dict[str, dict[str, Any]] = {
    "qwen2_vl": {
        "text_config": {"rope_parameters": _MROPE},
        "vision_config": {**_QWEN_VISION, "hidden_size": 72},
    },
    "qwen2_5_vl": {
        "text_config": {"rope_parameters": _MROPE},
        "vision_config": {**_QWEN_VISION, "fullatt_block_indexes": [0]},
    },
    "qwen3_vl": {
        "text_config": {"head_dim": 8, "rope_parameters": _MROPE},
        "vision_config": {**_QWEN_VISION, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
    },
    "glm4v": {
        "text_config": {"hidden_size": 144, "rope_parameters": {**_MROPE, "partial_rotary_factor": 0.5}},
        "vision_config": _GLM_VISION,
    },
    "glm46v": {
        "text_config": {"hidden_size": 144, "rope_parameters": {**_MROPE, "partial_rotary_factor": 0.5}},
        "vision_config": {"model_type": "glm4v_vision", **_GLM_VISION},
    },
    "glm4v_moe": {
        "text_config": {
            "hidden_size": 144,
            "head_dim": 16,
            **_ROUTED,
            "rope_parameters": {**_MROPE, "partial_rotary_factor": 0.5},
        },
        "vision_config": _GLM_VISION,
    },
    "smolvlm": {
        "text_config": {"model_type": "llama"},
        "vision_config": {k: v for k, v in _SIGLIP.items() if k != "model_type"},
    },
    "idefics3": {
        "text_config": {"model_type": "llama"},
        "vision_config": {k: v for k, v in _SIGLIP.items() if k != "model_type"},
    },
    "llava": {"text_config": {"model_type": "llama"}, "vision_config": {**_SIGLIP, "num_hidden_layers": 2}},
    "deepseek_vl": {"text_config": {"model_type": "llama"}, "vision_config": _SIGLIP},
    "llava_onevision": {"text_config": {"model_type": "qwen2"}, "vision_config": _SIGLIP},
    "internvl": {
        "text_config": {"model_type": "qwen2"},
        "vision_config": {
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 16,
            "patch_size": 8,
        },
    },
    "mistral3": {
        "text_config": {"model_type": "mistral", **_SLIDING},
        "vision_config": {
            "model_type": "pixtral",
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 16,
            "patch_size": 8,
        },
    },
    "gemma3": {"text_config": TEXT["gemma3_text"], "vision_config": _SIGLIP, "mm_tokens_per_image": 4},
    "llama4": {
        "text_config": TEXT["llama4_text"],
        "vision_config": {
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 16,
            "patch_size": 8,
            "vision_output_dim": 16,
        },
    },
    "kimi_k25": {
        "text_config": {"model_type": "deepseek_v3", **TEXT["deepseek_v3"]},
        "vision_config": {
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "patch_size": 4,
            "pos_emb_height": 4,
            "pos_emb_width": 4,
        },
    },
}

_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 8.0,
    "original_max_position_embeddings": 512,
    "mscale": 0.7,
    "mscale_all_dim": 0.9,
}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.1, 1.3, 1.7],
    "long_factor": [1.0, 2.0, 5.0, 9.0],
    "original_max_position_embeddings": 2048,
}

ROPES: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 1e4,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 8.0,
        "original_max_position_embeddings": 512,
    },
}
"""Rope scalings with a fixed table, for the `rope_parameters` of a tiny llama."""

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"llama-{name}": ("llama", {"rope_parameters": rope}) for name, rope in ROPES.items()},
    "mistral-full": ("mistral", {"sliding_window": None}),
    "qwen2-full": ("qwen2", {"use_sliding_window": False}),
    "qwen3-sliding": ("qwen3", {"use_sliding_window": True, "max_window_layers": 1, **_SLIDING}),
    "phi3-longrope": ("phi3", {"rope_parameters": _LONGROPE, "original_max_position_embeddings": 2048}),
    "phi3-sliding": ("phi3", _SLIDING),
    "stablelm-plain": ("stablelm", {"qk_layernorm": False, "use_parallel_residual": True}),
    "minimax_m2-whole": ("minimax_m2", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
    "smollm3-full": ("smollm3", {"use_sliding_window": False}),
    "exaone4-full": ("exaone4", {"sliding_window": None, "layer_types": [_FULL] * 4}),
    "gemma2-uncapped": ("gemma2", {"attn_logit_softcapping": None}),
    "gpt_oss-unscaled": ("gpt_oss", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
    "deepseek_v2-yarn": ("deepseek_v2", {"rope_parameters": _YARN, "q_lora_rank": None}),
    "deepseek_v3-yarn": ("deepseek_v3", {"rope_parameters": _YARN}),
    "deepseek_v3-half": ("deepseek_v3", {"rope_interleave": False}),
    "minicpm3-longrope": ("minicpm3", {"rope_parameters": _LONGROPE}),
    "minicpm3-wide-values": ("minicpm3", {"v_head_dim": 26}),
    "ministral3-sliding": ("ministral3", _SLIDING),
    "llava-sliding": ("llava", {"model_type": "mistral", **_SLIDING}),
    "mistral3-scaled": (
        "mistral3",
        {"model_type": "ministral3", "head_dim": 8, "rope_parameters": _QUERY_SCALE},
    ),
}
"""Other settings of a family: (model type, fields of its text config)."""
