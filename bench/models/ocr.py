"""PP-OCRv6's line recogniser as a frozen encoder: one feature vector for each character it sees.

The network ships as ONNX in the wheel of `rapidocr` (Apache-2.0), of which only this file is read. It
ends in a table of column features and a classifier over them with a blank class (CTC). Columns where
the classifier emits a character are kept; what the character is, is left to who reads the features.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from PIL import Image

from bench.models.wheels import Material, built, fetch

MATERIAL = Material(
    requirements=("rapidocr==3.10.0",),
    pattern=r"rapidocr/models/PP-OCRv6_rec_small\.onnx",
    size=21_234_383,
    sha256="6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884",
)
FEATURES = "p2o.pd_op.transpose.8.0"  # [1, columns, 120], what the classifier reads
WIDTH = 120
HEIGHT, LEAST_WIDTH, STEP = 48, 320, 32  # px the network was trained on
BLANK = 0


@dataclass(frozen=True, eq=False)
class Reader:
    """session: gives class probabilities [1, columns, classes] and features. alphabet: class → character."""

    session: Any
    alphabet: tuple[str, ...]

    def read(self, image: Image.Image) -> tuple[str, NDArray[np.float32]]:
        """(characters, features fp32 [n, 120]) of a picture of one line, one row per character."""
        classes, features = self.session.run(None, {"x": _pixels(image)})
        best = classes[0].argmax(1)  # [columns]
        emits = (best != BLANK) & (best != np.concatenate([[BLANK], best[:-1]]))
        return "".join(self.alphabet[index] for index in best[emits]), features[0, emits]


def load() -> Reader:
    """The recogniser, fetched on the first call (27 MB)."""
    path = built("pp-ocrv6-rec-small", lambda target: _fetch(target)) / "model.onnx"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        _with_output(path.read_bytes(), FEATURES), options, providers=["CPUExecutionProvider"]
    )
    listed = session.get_modelmeta().custom_metadata_map["character"].split("\n")
    return Reader(session, ("", *(name for name in listed if name), " "))


def _fetch(target: Path) -> None:
    fetch(MATERIAL, target / "model.onnx")


def _pixels(image: Image.Image) -> NDArray[np.float32]:
    """[1, 3, 48, W] in -1..1, blue first; the right is filled with mid-grey as in PaddleOCR."""
    width = max(1, -(-image.width * HEIGHT // image.height))
    resized = image.convert("RGB").resize((width, HEIGHT), Image.Resampling.BILINEAR)
    values = np.asarray(resized, dtype=np.float32)[:, :, ::-1].transpose(2, 0, 1) / 127.5 - 1
    filled = np.zeros((1, 3, HEIGHT, max(LEAST_WIDTH, -(-width // STEP) * STEP)), np.float32)
    filled[0, :, :, :width] = values
    return filled


def _with_output(model: bytes, name: str) -> bytes:
    # An ONNX file is a protobuf message, and a field of a message that is written twice is merged: a second
    # graph with nothing but one output adds that output. ModelProto.graph = 7, GraphProto.output = 12,
    # ValueInfoProto.name = 1; all are length-delimited, and these lengths fit into one byte.
    value = bytes([1 << 3 | 2, len(name)]) + name.encode()
    graph = bytes([12 << 3 | 2, len(value)]) + value
    return model + bytes([7 << 3 | 2, len(graph)]) + graph
