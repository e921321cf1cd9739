"""Writes the LZ4 dictionary of header and index payloads (format-v1.md, Stages).

    python spec/make_dictionary.py

The dictionary is part of format version 1 and never changes within it; this script says how its
bytes came about, and the tests check that they still do.
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).resolve().parent
COPIES = (HERE / "dictionary-v1.bin", HERE.parent / "rust/format/src/dictionary-v1.bin")

LAYER = "model.layers.\x01."
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")


def text(value: str) -> bytes:
    """A MessagePack str of fewer than 256 bytes."""
    raw = value.encode()
    head = bytes([0xA0 | len(raw)]) if len(raw) < 32 else bytes([0xD9, len(raw)])
    return head + raw


def names(*suffixes: str) -> bytes:
    return b"".join(text(suffix) for suffix in suffixes)


def layer(*suffixes: str) -> bytes:
    return names(*(LAYER + suffix for suffix in suffixes))


def dictionary() -> bytes:
    """Rarest first: names of MoE and latent attention, of biases, of dense layers, then keys."""
    weights = [f"self_attn.{p}.weight" for p in ATTENTION]
    sorted_layer = [
        "input_layernorm.weight",
        *(f"mlp.{p}.weight" for p in sorted(MLP)),
        "post_attention_layernorm.weight",
        *(
            f"self_attn.{p}.weight"
            for p in ("k_norm", "k_proj", "o_proj", "q_norm", "q_proj", "v_proj")
        ),
    ]
    module_layer = [
        *weights,
        "self_attn.q_norm.weight",
        "self_attn.k_norm.weight",
        *(f"mlp.{p}.weight" for p in MLP),
        "input_layernorm.weight",
        "post_attention_layernorm.weight",
    ]
    return b"".join(
        [
            layer(
                *(f"self_attn.{p}.weight" for p in ("kv_a_proj_with_mqa", "kv_a_layernorm")),
                *(f"self_attn.{p}.weight" for p in ("kv_b_proj", "q_a_proj", "q_b_proj")),
                *(f"mlp.shared_experts.{p}.weight" for p in MLP),
                *(f"block_sparse_moe.experts.\x01.{p}.weight" for p in ("w1", "w2", "w3")),
                "block_sparse_moe.gate.weight",
                "mlp.gate.e_score_correction_bias",
                "mlp.gate.weight",
                *(f"mlp.experts.\x01.{p}.weight" for p in MLP),
                *(f"mlp.experts.\x01.{p}.weight" for p in sorted(MLP)),
            ),
            names("language_model.model.norm.weight", "transformer.h.\x01.ln_1.weight"),
            layer("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"),
            layer(*module_layer),
            text("model.norm.weight"),
            text("lm_head.weight"),
            text("model.embed_tokens.weight"),
            layer(*sorted_layer),
            names("F8_E4M3", "F32", "F16"),
            b"\x87" + text("changed") + b"\xcd\x01" + text("tensors") + b"\xc4\x02\x00\x02",
            text("tiles") + b"\xc4\x02\x00\x00" + text("lengths") + b"\xc4\x02\x20",
            text("digests") + b"\xdc\x00\xc0",
            text("base_state") + b"\xc4\x10" + text("result_state") + b"\xc4\x10",
            b"\x8d" + text("run") + b"\xa0" + text("version") + b"\x01",
            text("base_version") + b"\x00" + text("base_state") + b"\xc0",
            text("profile") + text("compact") + text("meta") + b"\x80",
            text("names") + b"\xdc\x00" + text("numbers") + b"\xc4\x01\x00",
            text("dtypes") + b"\x91" + text("BF16") + text("dtype") + b"\xc4\x10" + bytes(64),
            text("rank") + b"\xc4\x10" + text("shapes") + b"\xc4\x20" + text("tiles") + b"\xc4\x20",
        ]
    )


def main() -> None:
    for path in COPIES:
        path.write_bytes(dictionary())


if __name__ == "__main__":
    main()
