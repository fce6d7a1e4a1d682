"""Architectures of transformers from small configurations; nothing is fetched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.coverage.exported import Built

IDS = 100  # the vocabulary
LENGTH = 16
IMAGE = 64
SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "embedding_size": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "d_model": 64,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "vocab_size": IDS,
}
FIXED_WIDTHS = (
    "mobilebert",
    "mobilevit",
    "mobilenet_v2",
    "segformer",
    "pvt",
    "funnel",
    "xlnet",
    "swin",
    "convnext",
    "swinv2",
    "swin2sr",
    "maskformer-swin",
    "focalnet",
    "hiera",
    "cvt",
    "levit",
    "poolformer",
    "pvt_v2",
    "glpn",
    "efficientnet",
    "swiftformer",
    "clap_audio_model",
    "convnextv2",
    "upernet",
    "depth_anything",
    "rt_detr",
    "perceiver",
    "prophetnet",
)


ARGUMENTS = {
    "ids": "input_ids",
    "translation": "input_ids",  # and of the decoder as well
    "image": "pixel_values",
    "video": "pixel_values",
    "audio": "input_values",
    "spectrum": "input_values",
    "series": "past_values",
    "spectrogram": "input_features",
    "mel": "input_features",
}


def transformers(name: str, facts: Mapping[str, Any]) -> Built:
    import torch
    import transformers as library
    from transformers import AutoConfig

    kind, type_ = facts.get("kind", "ids"), facts.get("type", name)
    settings = _settings(type_, kind) | facts.get("settings", {})
    config = AutoConfig.for_model(type_, **settings)
    config.use_cache = False
    config.return_dict = True
    config.architectures = facts.get("architectures")  # asked where a configuration fits several
    model = getattr(library, facts.get("class", "AutoModel")).from_config(
        config, attn_implementation=facts.get("attention")
    )
    if part := facts.get("part"):
        model = getattr(model, part)

    nth = facts.get("output", 0)

    class OneOutput(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, first: Any, mask: Any = None) -> Any:
            given = ARGUMENTS[kind]
            named = {given: first} | ({} if mask is None else {"attention_mask": mask})
            if kind == "translation":
                named["decoder_input_ids"] = first
            return self.model(**named)[nth]

    return Built(OneOutput(), _inputs(kind, facts, config), facts.get("batch", True))


def _settings(type_: str, kind: str) -> dict[str, Any]:
    """Settings that the architecture knows, small."""
    from transformers import AutoConfig

    default = AutoConfig.for_model(type_)
    known = {key: value for key, value in SMALL.items() if hasattr(default, key)}
    if type_ in FIXED_WIDTHS:  # widths that depend on each other, or are lists
        known = {"vocab_size": IDS} if "vocab_size" in known else {}
    if kind in ("image", "video") and isinstance(getattr(default, "image_size", None), int | list | tuple):
        known["image_size"] = IMAGE if isinstance(default.image_size, int) else [IMAGE, IMAGE]
    if kind in ("ids", "translation", "spectrogram") and hasattr(default, "pad_token_id"):
        known |= {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    return known


def _inputs(kind: str, facts: Mapping[str, Any], config: Any) -> dict[str, Any]:
    import torch

    if kind in ("ids", "translation"):
        ids = torch.randint(3, IDS, (2, LENGTH))
        return {"input_ids": ids} | ({"attention_mask": torch.ones_like(ids)} if facts.get("mask", True) else {})
    size = facts.get("size", IMAGE)
    if kind == "image":
        return {"pixel_values": torch.randn(2, 3, size, size)}
    if kind == "video":
        return {"pixel_values": torch.randn(2, config.num_frames, 3, size, size)}
    if kind == "spectrum":
        return {"input_values": torch.randn(2, config.max_length, config.num_mel_bins)}
    if kind == "series":
        return {"past_values": torch.randn(2, config.context_length, config.num_input_channels)}
    if kind == "mel":
        return {
            "input_features": torch.randn(
                2, 1, config.spec_size * config.spec_size // config.num_mel_bins, config.num_mel_bins
            )
        }
    if kind == "audio":
        return {"input_values": torch.randn(2, 1600)}
    if hasattr(config, "input_feat_per_channel"):
        return {"input_features": torch.randn(2, 2 * config.max_source_positions, config.input_feat_per_channel)}
    return {"input_features": torch.randn(2, config.num_mel_bins, 2 * config.max_source_positions)}
