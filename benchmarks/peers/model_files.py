"""A model's weights in the forms that other engines read. Needs numpy and gguf."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

COARSE_LEVELS = 7
"""Steps on each side of zero in a coarse row: 4 bits."""


def write_half(source: Path, target: Path, coarse: bool = False, q8: bool = False) -> None:
    """Copy a GGUF file with its matrices as float16, or as Q8_0 with `q8`.

    Args:
        source: the file to read.
        target: the file to write.
        coarse: round the matrices of the layers to 4 bits a weight with one scale for each row.
            What comes of it is a draft model: of the same family, and often of another opinion.
        q8: keep 8 bits a weight, with one scale for each 32.
    """
    kind = gguf.LlamaFileType.MOSTLY_Q8_0 if q8 else gguf.LlamaFileType.MOSTLY_F16
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(field.name, field.contents())
        elif field.name == "general.file_type":
            writer.add_file_type(kind)
        else:
            writer.add_key_value(field.name, field.contents(), field.types[0])
    for tensor in reader.tensors:
        data = gguf.dequantize(tensor.data, tensor.tensor_type)
        matrix = len(tensor.shape) > 1
        if matrix and coarse and tensor.name.startswith("blk."):
            data = _rounded(data)
        if matrix and q8:
            eight = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(tensor.name, gguf.quantize(data, eight), raw_dtype=eight)
            continue
        writer.add_tensor(tensor.name, data.astype(np.float16 if matrix else np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _rounded(matrix: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    scale = np.abs(matrix).max(axis=1, keepdims=True) / COARSE_LEVELS
    scale[scale == 0] = 1
    return np.round(matrix / scale) * scale


def coarse_gguf(source: Path, folder: Path) -> Path:
    """A draft model as a GGUF file in `folder`, made if absent."""
    return _made(source, folder / "coarse.gguf", coarse=True)


def q8_gguf(source: Path, folder: Path) -> Path:
    """The weights as Q8_0, 8 bits each, as a GGUF file in `folder`, made if absent."""
    return _made(source, folder / "model.Q8_0.gguf", q8=True)


def _made(source: Path, path: Path, **form: bool) -> Path:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        write_half(source, part, **form)
        part.replace(path)
    return path


def genai_model(source: Path, folder: Path, precision: str) -> Path:
    """A directory that OpenVINO GenAI loads, with the weights of a GGUF file, made if absent.

    GenAI turns a GGUF file into its own graph; "int8" then compresses that by NNCF to symmetric
    int8 per row, which is what paceline does to the same weights. Needs openvino_genai, and nncf.
    """
    if (folder / "done").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    import openvino as ov
    import openvino_genai

    with tempfile.TemporaryDirectory() as scratch:
        half = Path(scratch) / "model.gguf"
        write_half(source, half)
        openvino_genai.LLMPipeline(str(half), "CPU", enable_save_ov_model=True)
        half.unlink()
        for file in Path(scratch).iterdir():
            shutil.move(file, folder / file.name)
    if precision == "int8":
        import nncf

        model = ov.Core().read_model(folder / "openvino_model.xml")
        model = nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_SYM)
        ov.save_model(model, folder / "int8.xml")
        del model
        for end in ("xml", "bin"):
            (folder / f"int8.{end}").replace(folder / f"openvino_model.{end}")
    (folder / "done").touch()
    return folder
