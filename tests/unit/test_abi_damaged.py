"""Damaged libraries: whatever the bytes, a verdict and never a traceback."""

import contextlib
import random
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

import abi_samples
import pytest
from abi_samples import NAME, SAMPLES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kbuild.abi import elf
from kbuild.abi.fatbin import BadFatbinError
from kbuild.abi.verify import context_for, verify_library
from kbuild.variants import parse

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not on the path")

CONTEXT = replace(context_for(parse("torch213-cxx11-cpu-x86_64-linux")), path=NAME)
# Shared over examples on purpose: each example makes its own bytes out of the same library.
FUZZ = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    sample = next(sample for sample in SAMPLES if sample.name == "string-of-torch")
    return abi_samples.stripped(
        abi_samples.build(sample, tmp_path_factory.mktemp("sound") / "k")
    ).read_bytes()


def parse_or_refuse(content: bytes) -> None:
    """Anything else that is raised fails the test."""
    with contextlib.suppress(elf.UnreadableElfError, BadFatbinError):
        elf.parse(content, path=Path(NAME))


@given(content=st.binary(max_size=300))
@FUZZ
def test_any_bytes(content: bytes) -> None:
    parse_or_refuse(content)
    parse_or_refuse(b"\x7fELF\x02\x01\x01" + content)


@given(data=st.data())
@FUZZ
def test_a_library_cut_short(sound: bytes, data: st.DataObject) -> None:
    parse_or_refuse(sound[: data.draw(st.integers(0, len(sound)))])


@given(data=st.data())
@FUZZ
def test_a_library_with_other_bytes_in_it(sound: bytes, data: st.DataObject) -> None:
    content = bytearray(sound)
    interesting = st.sampled_from([b"\0", b"\xff", b"\xff" * 4, b"\xff" * 8, b"\x7f", b"\x80", b"\x01"])
    for _ in range(data.draw(st.integers(1, 6))):
        # Half of the changes hit the headers, where they hurt.
        at = data.draw(st.one_of(st.integers(0, 1000), st.integers(0, len(content) - 8)))
        word = data.draw(interesting)
        content[at : at + len(word)] = word
    parse_or_refuse(bytes(content))


def test_every_single_byte_of_the_headers(sound: bytes) -> None:
    chance = random.Random(1)
    for at in range(64 + 56 * 12):
        content = bytearray(sound)
        content[at] = chance.randrange(256)
        parse_or_refuse(bytes(content))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it does not begin with the ELF magic number"),
        (b"#!/bin/sh\n", "it does not begin with the ELF magic number"),
        (b"version https://git-lfs.github.com/spec/v1\n", "it does not begin with the ELF magic number"),
        (b"\x7fELF", "its structure is damaged"),
    ],
)
def test_what_is_no_library_is_a_violation_that_says_why(
    content: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / NAME
    path.write_bytes(content)

    (violation,) = verify_library(path, CONTEXT).violations

    assert violation.code == "unreadable"
    assert message in violation.message
    assert violation.hint


def test_a_missing_reader_is_not_the_file_s_fault(sound: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "elftools.elf.elffile", None)
    with pytest.raises(ImportError):
        elf.parse(sound, path=Path(NAME))


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0x04, 1, "it is not a 64-bit little-endian ELF file"),
        (0x05, 2, "it is not a 64-bit little-endian ELF file"),
        (0x10, 1, "it is no shared library (its type is ET_REL)"),
    ],
    ids=["32-bit", "big-endian", "object"],
)
def test_other_kinds_of_elf_files_are_refused(at: int, value: int, message: str, sound: bytes) -> None:
    content = bytearray(sound)
    content[at] = value

    with pytest.raises(elf.UnreadableElfError) as caught:
        elf.parse(bytes(content), path=Path(NAME))

    assert message in str(caught.value)


def test_a_large_library_is_judged_in_well_under_a_second(tmp_path: Path) -> None:
    sample = replace(
        SAMPLES[0],
        cxx=True,
        source="".join(f"int f{i}() {{ return {i}; }}\n" for i in range(20_000))
        + 'extern const char big[];\nasm(".section .rodata\\nbig: .zero 10000000\\n.text");\n',
        flags=("-O0", "-g0"),
    )
    library = abi_samples.build(sample, tmp_path / "large")
    assert library.stat().st_size > 10_000_000

    start = time.process_time()
    verdict = verify_library(library, CONTEXT)

    assert time.process_time() - start < 1
    assert verdict.ok
