"""Compile every Triton kernel variant without a GPU and read its registers, spills and shared memory.

`python -m bench.ops.kernel_registers` writes bench/results/kernel_registers.json. The numbers are what
ptxas reports for the code that would be loaded; nothing here has run on a GPU.
"""

import itertools
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from agentkv_kernels.merge import triton as merge_triton
from agentkv_kernels.patch import triton as patch_triton
from agentkv_kernels.rotate import triton as rotate_triton
from agentkv_kernels.types import Factors, Rope
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability
from triton.compiler import ASTSource

CAPABILITIES = (80, 90, 100)
RESULT = Path(__file__).parents[1] / "results" / "kernel_registers.json"
_TYPE = {torch.float64: "fp64", torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


class Variant(NamedTuple):
    """One kernel with one set of compile-time arguments."""

    kernel: str
    label: str
    function: Any
    pointers: dict[str, str]  # argument → element type
    constants: dict[str, Any]


class Cost(NamedTuple):
    """What ptxas reports for one variant on one architecture; bytes per thread and per block."""

    kernel: str
    variant: str
    sm: int
    registers: int
    spills: int
    shared: int


def variants() -> Iterator[Variant]:
    """Every combination that changes the code: dtypes, head width, pairing, partial band, paging, slots."""
    yield from _rotate_variants()
    yield from _place_variants()
    yield from _merge_variants()


class Slot(NamedTuple):
    """One slot to compile for: D, R, where the band starts, its pairing, and the dtype of its factors."""

    dtype: torch.dtype
    width: int
    band: int
    start: int
    style: str
    factors: torch.dtype | None = None
    turned: bool = True

    def tensors(self) -> patch_triton.Slot:
        x = torch.empty(2, 4, 2, self.width, dtype=self.dtype)
        angle = torch.empty(1, 4, self.band // 2)
        rope = Rope(angle, angle, torch.zeros(2, dtype=torch.int32), self.style, self.start)
        left = torch.empty(4, 8, dtype=self.factors or self.dtype)
        low_rank = Factors(left, torch.empty(8, 2 * self.width, dtype=left.dtype), torch.tensor([0, 8, 8]))
        return x, x, rope if self.turned else None, low_rank if self.factors else None

    def pointers(self) -> dict[str, str]:
        angle = "fp64" if self.dtype == torch.float64 else "fp32"
        of = {"dst": _TYPE[self.dtype], "src": _TYPE[self.dtype]}
        if self.turned:
            of |= {"cos": angle, "sin": angle, "spec": "i32"}
        if self.factors:
            of |= {"left": _TYPE[self.factors], "right": _TYPE[self.factors], "offsets": "i32"}
        return of

    def __str__(self) -> str:
        return f"{_TYPE[self.dtype]} D{self.width} R{self.band}+{self.start} {self.style}"


_BANDS = ((16, 16, 0), (64, 64, 0), (80, 80, 0), (80, 32, 8), (128, 128, 0), (256, 256, 0), (576, 64, 512))
_STYLES = ("half", "interleaved")


def _slots() -> Iterator[Slot]:
    for dtype, band, style in itertools.product(_TYPE, _BANDS, _STYLES):
        if dtype in (torch.float32, torch.bfloat16) or band[0] in (64, 128):
            yield Slot(dtype, *band, style)


def _rotate_variants() -> Iterator[Variant]:
    for slot, in_place in itertools.product(_slots(), (False, True)):
        x, _, rope, _ = slot.tensors()
        assert rope is not None
        of = slot.pointers()
        pointers = {
            "x": of["src"],
            "out": of["src"],
            "cos": of["cos"],
            "sin": of["cos"],
            "spec_of_layer": "i32",
        }
        constants = rotate_triton.launch_options(x, rope, in_place) | {"x_dim": 1, "out_dim": 1}
        label = f"{slot}{' in place' if in_place else ''}"
        yield Variant("rotate", label, rotate_triton._rotate_kernel, pointers, constants)


def _place_variants() -> Iterator[Variant]:
    for slot, paged, added in itertools.product(_slots(), (False, True), (False, True)):
        key = slot._replace(factors=slot.dtype if added else None)
        yield _place_variant([key, key._replace(turned=False)], paged)
    for slot in _slots():
        narrow = slot._replace(factors=torch.bfloat16)
        if slot.style == "half":
            yield _place_variant([narrow], False)
            yield _place_variant([narrow._replace(turned=False)], False)
        if slot.dtype == torch.float32:
            yield _place_variant([narrow, narrow._replace(turned=False)], True)
    key = Slot(torch.bfloat16, 128, 128, 0, "half", torch.bfloat16)
    ones = dict.fromkeys(("index", "tokens", "layers", "heads", "total_0", "total_1"), 1)
    variant = _place_variant([key, key._replace(turned=False)], False)
    yield variant._replace(label=f"{variant.label}, all counts 1", constants=variant.constants | ones)


def _place_variant(slots: list[Slot], paged: bool) -> Variant:
    pointers = {"index": "i64"} if paged else {}
    constants: dict[str, Any] = {"dst_dim": 1, "src_dim": 1}
    for n in (0, 1):
        of = slots[n].pointers() if n < len(slots) else {}
        for name in ("dst", "src", "cos", "sin", "spec", "left", "right", "offsets"):
            if name in of:
                pointers[f"{name}_{n}"] = of[name]
            else:
                constants[f"{name}_{n}"] = None
        if not of:
            constants[f"total_{n}"] = None
    constants |= patch_triton.launch_options([slot.tensors() for slot in slots], not paged)
    kinds = "+".join("turned" if slot.turned else "plain" for slot in slots)
    added = f"factors {_TYPE[slots[0].factors]}" if slots[0].factors else "no factors"
    label = f"{slots[0]} {kinds}, {added}, {'paged' if paged else 'contiguous'}"
    return Variant("place", label, patch_triton._place_kernel, pointers, constants)


def _merge_variants() -> Iterator[Variant]:
    for dtype in _TYPE:
        for width in (16, 80, 128, 576):
            log = torch.float64 if dtype == torch.float64 else torch.float32
            outs = dict.fromkeys(("out_a", "out_b", "out"), _TYPE[dtype])
            logs = dict.fromkeys(("lse_a", "lse_b", "lse"), _TYPE[log])
            constants = merge_triton.launch_options(width, log)
            yield Variant(
                "merge", f"{_TYPE[dtype]} D{width}", merge_triton._merge_kernel, outs | logs, constants
            )


def compile_variant(variant: Variant, capability: int) -> Cost:
    """Compile for sm_<capability> as a launch with aligned pointers and unit last strides would."""
    names: list[str] = variant.function.arg_names
    types = dict.fromkeys(names, "i32")
    types |= {name: f"*{kind}" for name, kind in variant.pointers.items()}
    types |= {name: "constexpr" for name in variant.constants if name in names}
    constants = {(names.index(name),): value for name, value in variant.constants.items() if name in names}
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in variant.pointers}
    options = {name: value for name, value in variant.constants.items() if name not in names}
    source = ASTSource(variant.function, types, constants, aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    registers, spills = _ptxas(compiled.asm["ptx"], capability)
    return Cost(variant.kernel, variant.label, capability, registers, spills, compiled.metadata.shared)


def _ptxas(ptx: str, capability: int) -> tuple[int, int]:
    arch = sm_arch_from_capability(capability)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx)
        command = [
            get_ptxas(capability).path,
            "--verbose",
            f"--gpu-name={arch}",
            str(path),
            "-o",
            f"{path}.cubin",
        ]
        report = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    used = re.search(r"Used (\d+) registers", report)
    spilt = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", report)
    if used is None or spilt is None:
        raise ValueError(
            f"ptxas report: got {report!r}; expected registers and spills; do: check its version"
        )
    return int(used[1]), int(spilt[1]) + int(spilt[2])


def main() -> None:
    """Compile the whole matrix and write it down."""
    costs = [compile_variant(variant, sm) for variant in variants() for sm in CAPABILITIES]
    RESULT.parent.mkdir(exist_ok=True)
    header = {
        "triton": triton.__version__,
        "run_on_a_gpu": False,
        "source": "ptxas --verbose on Triton's PTX",
    }
    rows = ",\n".join(json.dumps(cost._asdict()) for cost in costs)
    RESULT.write_text(json.dumps(header)[:-1] + f', "rows": [\n{rows}\n]}}\n')
    worst, spilt = max(cost.registers for cost in costs), sum(cost.spills for cost in costs)
    print(f"{len(costs)} kernels, {worst} registers at most, {spilt} bytes spilt → {RESULT}")


if __name__ == "__main__":
    main()
