"""Networks of recurrent cells with hundreds of units, at the sizes of their use: text, speech, sound."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bench.coverage.exported import Built


def network(name: str, facts: Mapping[str, Any]) -> Built:
    import torch

    made: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
        "crnn": (_text_reader, (1, 32, 160)),
        "deep_speech_2": (_speech, (200, 161)),
        "seq2seq_encoder": (_translator, (30,)),
        "tagger": (_tagger, (40,)),
        "language_model": (_language_model, (35,)),
        "voice_activity": (_voice_activity, (64, 40)),
        "sound_codec": (_sound_codec, (1, 8000)),
    }
    build, shape = made[name]
    floats = len(shape) > 1
    return Built(build(), {"x": torch.randn(1, *shape) if floats else torch.randint(0, 10_000, (1, *shape))})


def _text_reader() -> Any:
    """Shi et al., "An end-to-end trainable neural network for image-based sequence recognition" (2015)."""
    from torch import nn

    class Crnn(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            parts = list[Any]()
            pools = {64: (2, 2), 128: (2, 2), 256: (2, 1), 512: (2, 1)}
            for inputs, outputs in ((1, 64), (64, 128), (128, 256), (256, 512)):
                parts += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
                parts.append(nn.MaxPool2d(pools[outputs]))
            self.features = nn.Sequential(*parts, nn.Conv2d(512, 512, (2, 1)), nn.ReLU())
            self.cells = nn.LSTM(512, 256, 2, bidirectional=True, batch_first=True)
            self.head = nn.Linear(512, 37)

        def forward(self, x: Any) -> Any:
            return self.head(self.cells(self.features(x).squeeze(2).transpose(1, 2))[0])

    return Crnn()


def _speech() -> Any:
    """Amodei et al., "Deep Speech 2" (2016), with three recurrent layers of 512 units."""
    from torch import nn

    class DeepSpeech(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(
                nn.Conv2d(1, 32, (11, 41), (2, 2), (5, 20)),
                nn.BatchNorm2d(32),
                nn.Hardtanh(0, 20),
                nn.Conv2d(32, 32, (11, 21), (1, 2), (5, 10)),
                nn.BatchNorm2d(32),
                nn.Hardtanh(0, 20),
            )
            self.cells = nn.GRU(32 * 41, 512, 3, bidirectional=True, batch_first=True)
            self.head = nn.Linear(1024, 29)

        def forward(self, x: Any) -> Any:
            x = self.features(x.unsqueeze(1)).transpose(1, 2).flatten(2)
            return self.head(self.cells(x)[0])

    return DeepSpeech()


def _of_words(width: int, cell: str, units: int, *, layers: int = 1, both: bool = False, outputs: int = 0) -> Any:
    """Cells of torch behind embeddings of 10,000 words. outputs: of a dense layer behind them, if there is one."""
    from torch import nn

    class OfWords(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(10_000, width)
            self.cells = getattr(nn, cell)(width, units, layers, bidirectional=both, batch_first=True)
            self.head = nn.Linear(2 * units if both else units, outputs) if outputs else nn.Identity()

        def forward(self, x: Any) -> Any:
            return self.head(self.cells(self.words(x))[0])

    return OfWords()


def _translator() -> Any:
    """The encoder of Bahdanau et al., "Neural machine translation by jointly learning to align and ..." (2015)."""
    return _of_words(620, "GRU", 1000, both=True)


def _tagger() -> Any:
    """Huang et al., "Bidirectional LSTM-CRF models for sequence tagging" (2015): the scores of the tags."""
    return _of_words(100, "LSTM", 200, both=True, outputs=17)


def _language_model() -> Any:
    """Zaremba et al., "Recurrent neural network regularization" (2014), the medium one."""
    return _of_words(650, "LSTM", 650, layers=2, outputs=10_000)


def _voice_activity() -> Any:
    """Small cells behind convolutions, as detectors of speech have them."""
    from torch import nn

    class Detector(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(nn.Conv1d(40, 64, 3, padding=1), nn.ReLU(), nn.Conv1d(64, 64, 3, padding=1))
            self.cells = nn.LSTM(64, 64, batch_first=True)
            self.head = nn.Linear(64, 1)

        def forward(self, x: Any) -> Any:
            x = self.features(x.transpose(1, 2)).relu().transpose(1, 2)
            return self.head(self.cells(x)[0]).sigmoid()

    return Detector()


def _sound_codec() -> Any:
    """The encoder of Défossez et al., "High fidelity neural audio compression" (2022), without its residual blocks."""
    from torch import nn

    class Codec(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            parts, width = [nn.Conv1d(1, 32, 7, padding=3)], 32
            for stride in (2, 4, 5, 8):
                parts += [nn.ELU(), nn.Conv1d(width, 2 * width, 2 * stride, stride, stride // 2)]
                width *= 2
            self.features = nn.Sequential(*parts)
            self.cells = nn.LSTM(width, width, 2, batch_first=True)
            self.head = nn.Conv1d(width, 128, 7, padding=3)

        def forward(self, x: Any) -> Any:
            x = self.features(x).transpose(1, 2)
            return self.head(nn.functional.elu((x + self.cells(x)[0]).transpose(1, 2)))

    return Codec()
