"""Old editions to the current one: what each step writes, what it keeps, and what it refuses."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbuild.config.editions import detect
from kbuild.config.migrate import Answers, Migration, migrate
from kbuild.config.schema import read_config
from kbuild.config.source import Source
from kbuild.diagnostics import Report
from kbuild.errors import FindingsError


def source_of(text: str) -> Source:
    source = Source.parse("build.toml", text, Report())
    assert source is not None
    return source


def migrated(text: str, license_id: str | None = "mit") -> Migration:
    return migrate(source_of(text), Answers(license=license_id))


V1 = """# Kernels of the group
[general]
name = "act" # short

[torch]
src = [ "torch-ext/b.cpp" ] # bindings
universal = false # compiled

[kernel.act] # both vendors
language   = "cuda-hipify"   # hip too
cuda-capabilities = ["8.0",
  "9.0"] # ours
rocm-archs = ["gfx942"] # theirs
depends = ["torch"]
src = ["act/act.cu"]

# the old one
[kernel.plain]
depends = []
src = ['a.cu']
"""

V1_NOW = """# Kernels of the group
[general]
name = "act" # short
version = 1
edition = 5
license = "mit"
backends = ["cuda", "rocm"]

[torch]
src = [ "torch-ext/b.cpp" ] # bindings
# compiled

[kernel.act] # both vendors
backend   = "cuda"   # hip too
cuda-capabilities = ["8.0",
  "9.0"] # ours
# theirs
depends = ["torch"]
src = ["act/act.cu"]

[kernel.act_rocm] # both vendors
backend   = "rocm"   # hip too
# ours
rocm-archs = ["gfx942"] # theirs
depends = ["torch"]
src = ["act/act.cu"]

# the old one
[kernel.plain]
backend = "cuda"
depends = []
src = ['a.cu']
"""

V2_UNIVERSAL = """[general]
name = "act"
universal = true
python-depends = ["einops", "nvidia-cutlass-dsl"]

[torch]
pyext = ["py", "json"]"""

V2_UNIVERSAL_NOW = """[general]
name = "act"
version = 1
edition = 5
license = "mit"
backends = ["cann", "cpu", "cuda", "metal", "neuron", "rocm", "xpu"]
python-depends = ["einops"]
cuda.python-depends = ["nvidia-cutlass-dsl"]

[torch-noarch]
pyext = ["py", "json"]"""

V3 = """[general]
    name = "act"
    backends = ["cuda"]
[general.hub]
repo-id = "org/act"
"""

V3_NOW = """[general]
    name = "act"
    version = 1
    edition = 5
    license = "mit"
    backends = ["cuda"]
[general.hub]
repo-id = "org/act"

[torch-noarch]
"""


@pytest.mark.parametrize(
    ("old", "new", "edition"), [(V1, V1_NOW, 1), (V2_UNIVERSAL, V2_UNIVERSAL_NOW, 2), (V3, V3_NOW, 3)]
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_golden(old: str, new: str, edition: int, newline: str) -> None:
    result = migrated(old.replace("\n", newline))
    assert result.edition == edition
    assert result.text == new.replace("\n", newline)
    assert migrated(result.text).text == result.text


def test_edition_4_gains_one_line() -> None:
    old = V1_NOW.replace("edition = 5\n", "")
    result = migrated(old)
    assert (result.edition, result.text, result.steps) == (4, V1_NOW, ("4 to 5: general.edition = 5",))


def test_cuda_bounds_stay_where_they_are() -> None:
    old = """[general]
name = "ab"
cuda-minver = "12.4" # why
[torch]
[kernel.x]
backend = "cuda"
depends = []
src = []
"""
    text = migrated(old).text
    assert 'cuda.minver = "12.4" # why\n' in text
    assert "[torch]\nsrc = []\n" in text


@pytest.mark.parametrize(
    ("old", "reason"),
    [
        (V3, "no general.license"),
        ('[general]\nname = "ab"\nuniversal = false\n[torch]\n', "no kernel that would say"),
        ('[general]\nname = "ab"\nuniversal = false\n', "no \\[torch\\]"),
        (V1.replace("kernel.plain", "kernel.act_rocm"), "'act_rocm', which exists"),
        (V1.replace('"cuda-hipify"', '"metal"'), "is for metal and has cuda-capabilities"),
        (V2_UNIVERSAL.replace("[torch]", '[torch]\nsrc = ["a.cpp"]'), "means Python only"),
        ('general = { name = "ab", universal = true }\n[torch]\n', "inline table"),
        (V3 + '[kernel.x]\nbackend = "cuda"\ndepends = []\nsrc = []\n', "kernels to compile and no"),
        (V3.replace('"cuda"', '"cude"'), "bad-value"),
        ("[general]\nedition = 9\n", "unknown-edition"),
    ],
)
def test_what_cannot_be_said_is_refused(old: str, reason: str) -> None:
    with pytest.raises(FindingsError, match=reason) as caught:
        migrated(old, license_id=None if "license" in reason else "mit")
    assert caught.value.hint


_NAME = st.from_regex(r"[a-z][-a-z0-9]{0,6}[a-z0-9]", fullmatch=True)
_COMMENT = st.sampled_from(["", " # why", "  # [general]", '# a = "b"'])
_VERSION = st.sampled_from(["2.9", "12.4", "13"])
_STRINGS = st.lists(st.sampled_from(["a.cu", "b/c.h", "π.cpp", 'q".cu']), max_size=3)


@st.composite
def _lines(draw: st.DrawFn, required: dict[str, Any], optional: dict[str, Any]) -> list[str]:
    """Some of the keys in some order, with comments and blank lines between and behind."""
    chosen = {**required, **{key: value for key, value in optional.items() if draw(st.booleans())}}
    lines = []
    for key in draw(st.permutations(list(chosen))):
        value = draw(chosen[key])
        lines.append(f"{key} = {json.dumps(value, ensure_ascii=False)}{draw(_COMMENT)}")
        if draw(st.booleans()):
            lines.append(draw(st.sampled_from(["", "# between"])))
    return lines


@st.composite
def old_files(draw: st.DrawFn) -> tuple[int, str]:
    """A valid file of one of the old editions that its own rules allow."""
    edition = draw(st.integers(1, 4))
    backends = ["cpu", "cuda", "metal", "rocm", "xpu"]
    general: dict[str, Any] = {"name": _NAME}
    extra: dict[str, Any] = {}
    torch: dict[str, Any] = {"include": _STRINGS, "pyext": st.just(["py", "json"]), "src": _STRINGS}
    if edition == 2:
        extra = {"cuda-minver": _VERSION, "python-depends": st.just(["einops"]), "universal": st.just(False)}
    if edition >= 2:
        torch |= {"minver": _VERSION}
    if edition >= 3:
        general |= {"backends": st.lists(st.sampled_from(backends), min_size=1, max_size=3)}
        extra = {"version": st.integers(0, 9), "license": st.just("mit")}
    if edition == 4:
        general |= extra
        extra = {"source": st.just("https://example.org/x.git")}
        torch |= {"cxx-flags": _STRINGS}
    text = ["# top", "[general]", *draw(_lines(general, extra))]
    if draw(st.booleans()) and edition >= 2:
        text += ["[general.hub]", 'repo-id = "org/x"']
    text += ["[torch] # framework", *draw(_lines({}, torch))]
    kernels = draw(st.lists(st.sampled_from(["ab", "c_d", "e-f"]), unique=True, min_size=1, max_size=3))
    for name in kernels:
        keys: dict[str, Any] = {"depends": st.just(["torch"]), "src": _STRINGS}
        options: dict[str, Any] = {"include": _STRINGS}
        if edition == 1:
            options |= {
                "language": st.sampled_from(["cuda", "cuda-hipify"]),
                "cuda-capabilities": st.just(["8.0"]),
                "rocm-archs": st.just(["gfx942"]),
            }
        else:
            keys |= {"backend": st.sampled_from(backends)}
        text += ["", "# section", f"[kernel.{name}]{draw(_COMMENT)}", *draw(_lines(keys, options))]
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    return edition, newline.join(text) + draw(st.sampled_from(["", newline]))


@given(old_files())
def test_every_valid_old_file_migrates_to_a_clean_one(case: tuple[int, str]) -> None:
    _, old = case
    before = source_of(old)
    result = migrated(old)
    after = source_of(result.text)
    report = Report()
    assert detect(after).edition == 5
    assert read_config(after, report) is not None, report.as_text()
    assert migrated(result.text).text == result.text
    # Nothing that the author wrote is lost: every comment, and every line that no step speaks of.
    assert (
        sorted(set(re.findall(r"# ?[a-z]+$", old, re.M)) - set(re.findall(r"# ?[a-z]+$", result.text, re.M)))
        == []
    )
    touched = ("universal", "language", "rocm-archs", "cuda-minver", "cuda-capabilities")
    kept = [line for line in old.splitlines() if not line.startswith(touched)]
    lines = iter(result.text.splitlines())
    assert all(line in lines for line in kept)
    assert detect(before).edition == result.edition
