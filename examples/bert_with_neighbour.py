"""BERT beside a second tenant: two models in one daemon, each under a target of its own, and both under load.

    python examples/bert_with_neighbour.py
    python examples/bert_with_neighbour.py --trials 0 --seconds 1    # compiles at once, a short load

The BERT has two layers and 64 tokens, so that it compiles in seconds. `veltair zoo bert_base --out bert_base.onnx`
writes the real one, with 12 layers and 384 tokens. The second tenant is the vision model of the example beside this
one.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import onnx
from vision_model import network

import veltair
from veltair.zoo.external_tensors import write_tensors
from veltair.zoo.language.bert import BertShape, build

TOKENS = 64
QUESTION = {
    "input_ids": np.arange(TOKENS, dtype=np.int64)[np.newaxis],  # of a tokenizer, in earnest
    "attention_mask": np.ones((1, TOKENS), np.int64),  # 0 behind the end of the text
    "token_type_ids": np.zeros((1, TOKENS), np.int64),  # 1 for the paragraph, 0 for the question
}


def write_bert(path: Path) -> None:
    """An untrained BERT for questions about a text, with its matrices in a file beside `path`."""
    data = path.with_suffix(".onnx.data")
    model, tensors = build(0, BertShape(layers=2, hidden=128, tokens=TOKENS, qos_ms=50), data.name)
    onnx.save(model, str(path))
    with data.open("wb") as file:
        write_tensors(file, 0, tensors, lambda done, total: None)


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve BERT and a vision model together.")
    parser.add_argument("--trials", type=int, help="candidates to measure of each layer (default: some)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of load (default: 10)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        write_bert(here / "bert.onnx")
        artifacts = {
            "bert": veltair.compile(here / "bert.onnx", here / "bert", trials=options.trials, qos_ms=50),
            "vision": veltair.compile(network(), here / "vision", trials=options.trials, qos_ms=20),
        }
        with veltair.serve(artifacts) as daemon:
            answer = daemon.client().infer("bert", QUESTION, deadline_ms=1000)
            first, last = answer["start_logits"].argmax(), answer["end_logits"].argmax()
            print(f"the answer stands between tokens {first} and {last}, says an untrained BERT")
            print(veltair.load_test(daemon, {"bert": 20, "vision": 50}, duration_s=options.seconds))


if __name__ == "__main__":
    main()
