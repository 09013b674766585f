"""kbuild's reading of operation schemas against PyTorch's own parser."""

import json
from pathlib import Path

from clients import new_client

from kbuild.sources.op_schema import SchemaError, parse_schema

SCHEMAS = [
    "f(Tensor x) -> Tensor",
    "f.over(Tensor x) -> Tensor",
    "ns::f(Tensor x) -> Tensor",
    "f() -> ()",
    "f(Tensor! out, Tensor input, Tensor(b!)? scratch) -> ()",
    "f(Tensor(a!)[] xs, Tensor[](b!) ys) -> Tensor(a!)[]",
    "f(Tensor(a|b!) x, Tensor(c -> *) y) -> Tensor(a)",
    "f(int x=1, *, float eps=1e-6, bool b=False, str mode='a') -> (Tensor out, int n)",
    "f(int[2] sizes=[1, 2], SymInt[] more=[], Scalar s=1.0) -> Tensor[]",
    'f(ScalarType? dtype=None, Device d="cpu", Layout? l=None, Generator? g=None) -> ()',
    "f(MemoryFormat m=contiguous_format, *, Tensor y) -> ()",
    "f(Tensor a, ...) -> ...",
    "f((int, Tensor) t, Dict(str, int) d) -> (Tensor, Tensor)",
    "f(Tensor x)",
    "f(Tensor) -> Tensor",
    "f(Tensor x) -> Tensor;",
    "f(Tensor x,) -> Tensor",
    "f(Tensor x, Tensor x) -> ()",
    "f(int x=1, int y) -> ()",
    "f(double x) -> ()",
    "f(long x) -> ()",
    "f(string s) -> ()",
    "f(Foo x) -> ()",
    "f(t x) -> t",
    "f(at::Tensor x) -> ()",
    "f(torch.dtype d) -> ()",
    "f(Tensor?! x) -> ()",
    "f(Tensor!(a!) x) -> ()",
    "f(bool b=true) -> ()",
    "f(Device d=cpu) -> ()",
    "f(float x=inf) -> ()",
    "f(Tensor x) -> (Tensor",
    "f(Tensor x -> Tensor",
    "f[Tensor x] -> Tensor",
    "f(Tensor x) - > Tensor",
    "",
    "f",
]
_PROBE = """
import json, sys, torch
answers = {}
for text in json.load(open(sys.argv[1])):
    try:
        torch._C.parse_schema(text, False)
        answers[text] = True
    except Exception:
        answers[text] = False
print(json.dumps(answers))
"""


def test_same_verdict_as_pytorch(tmp_path: Path) -> None:
    path = tmp_path / "schemas.json"
    path.write_text(json.dumps(SCHEMAS))
    theirs = json.loads(new_client().check(_PROBE, str(path), environment={}))
    ours = {}
    for text in SCHEMAS:
        try:
            parse_schema(text)
        except SchemaError:
            ours[text] = False
        else:
            ours[text] = True
    assert ours == theirs
