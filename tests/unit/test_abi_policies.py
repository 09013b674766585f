"""The data behind the verdicts, and the reading of mangled names."""

import re
import shutil
import subprocess

import pytest

from kbuild.abi import policies, refresh
from kbuild.abi.symbols import demangle, uses_old_string
from kbuild.resources import data_path


def test_the_limited_api_is_what_its_source_says() -> None:
    pytest.importorskip("abi3info")

    shipped = data_path(refresh.NAME).read_text(encoding="utf-8")

    assert shipped == refresh.python_limited_api(), "run: python -m kbuild.abi.refresh"


def test_the_limited_api_knows_old_new_and_no_private_symbols() -> None:
    added = policies.python_limited_api().added

    assert added["PyModule_Create2"] == "3.2"
    assert added["PyType_GetName"] == "3.11"
    assert "_PyObject_GetDictPtr" not in added


@pytest.mark.parametrize(
    ("version", "allowed"),
    [
        ("GLIBC_2.28", True),
        ("GLIBC_2.2.5", True),
        ("GLIBC_2.29", False),
        ("GLIBC_PRIVATE", False),
        ("GLIBC_ABI_DT_RELR", False),
        ("GLIBCXX_3.4.9", True),
        ("GLIBCXX_3.4.24", True),
        ("GLIBCXX_3.4.25", False),
        ("CXXABI_1.3.11", True),
        ("CXXABI_1.3.12", False),
        ("CXXABI_TM_1", True),
        ("GCC_7.0.0", True),
        ("GCC_12.0.0", False),
        ("libcudart.so.13", True),
    ],
)
def test_versions_are_compared_as_numbers(version: str, allowed: bool) -> None:
    assert policies.manylinux().allows(version) is allowed


def test_a_cpu_variant_may_need_no_library_of_cuda() -> None:
    needed = policies.needed()

    assert not needed.is_cuda & needed.allowed(cuda=None).keys()
    assert "libcudart.so.13" in needed.allowed(cuda=13)
    assert "libcudart.so.12" not in needed.allowed(cuda=13)


@pytest.mark.parametrize("release", policies.torch_releases())
def test_the_symbols_of_each_release_can_be_read(release: str) -> None:
    torch = policies.torch_release(release)

    assert torch is not None
    cpu, cuda = torch.symbols(cuda=False), torch.symbols(cuda=True)
    assert "aoti_torch_get_dim" in cpu
    assert "_ZN3c104cuda12device_countEv" in cuda - cpu


def test_a_release_without_symbols_is_none() -> None:
    assert policies.torch_releases()
    assert policies.torch_release("1.0") is None


@pytest.mark.parametrize(
    ("name", "old"),
    [
        ("_ZN3c106detail14torchCheckFailEPKcS2_jRKSs", True),
        ("_ZNSs6appendEmc", True),
        ("_ZNKSs7compareEPKc", True),
        ("_Z1fSbIwSt11char_traitsIwESaIwEE", True),
        (
            "_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
            False,
        ),
        ("_ZN5ClaSs3SsrEv", False),
        ("_ZN2at4SsSsILi3ELb1EEEvT_S1_S0_", False),
        ("_Z1fRA12_cSs", True),
        ("_ZN1aIXadL_Z1gvEEE1fEv", False),
        ("_ZNSt6vectorIiSaIiEE9push_backEOi", False),
        ("GetSsrc", False),
        ("_Z99999999999999999999999", False),
    ],
)
def test_old_strings_are_found_in_mangled_names(name: str, old: bool) -> None:
    assert uses_old_string(name) is old


def test_names_are_demangled_as_cxxfilt_does() -> None:
    if shutil.which("c++filt") is None:
        pytest.skip("c++filt is not on the path")
    torch = policies.torch_release(policies.torch_releases()[-1])
    assert torch is not None
    names = sorted(torch.symbols(cuda=False))
    theirs = subprocess.run(
        ["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True
    ).stdout.splitlines()

    # It spells out what the substitutions Si, So and Sd stand for.
    theirs = [
        re.sub(r"std::basic_([io]+stream)<char, std::char_traits<char> >", r"std::\1", name)
        for name in theirs
    ]
    assert [demangle(name) for name in names] == theirs


@pytest.mark.parametrize("release", policies.torch_releases())
def test_pytorch_itself_uses_no_old_strings(release: str) -> None:
    torch = policies.torch_release(release)

    assert torch is not None
    assert not [name for name in torch.symbols(cuda=True) if uses_old_string(name)]


def test_what_is_no_mangled_name_stays_as_it_is() -> None:
    assert demangle("malloc") == "malloc"
    assert demangle("_Znonsense") == "_Znonsense"
