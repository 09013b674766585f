"""metadata.json: what is written reads back, here and in the `kernels` loader; digests are the loader's."""

import json
import os
import string
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels._rust import Digest as LoaderDigest
from kernels._rust import DigestAlgorithm as LoaderAlgorithm
from kernels._rust import Metadata as LoaderMetadata

from kbuild import metadata as md
from kbuild.errors import ExitCode

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SMALLEST: dict[str, Any] = {
    "id": "relu_cpu_abc",
    "name": "relu",
    "version": 1,
    "license": "Apache-2.0",
    "python-depends": [],
    "backend": {"type": "cpu"},
}

_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_names = st.from_regex(r"[a-z][-a-z0-9]{0,10}[a-z0-9]", fullmatch=True)
_ids = st.text(string.ascii_letters + string.digits + "_", min_size=1, max_size=20)
_git = st.builds(md.GitStatus, commit=st.sampled_from([COMMIT, "f" * 64]), dirty=st.booleans())
_urls = st.sampled_from(
    ["https://example.org/a/b", "git@example.org:a/b.git", "ssh://git@example.org:22/a", "git+https://x.y/z"]
)
_dependencies = st.one_of(
    st.builds(md.KernelDependency, repo_id=_texts, version=st.integers(0, 2**64 - 1)),
    st.builds(md.KernelDependency, repo_id=_texts, revision=_texts),
)
_metadata = st.builds(
    md.Metadata,
    id=_ids,
    name=_names,
    version=st.integers(0, 2**64 - 1),
    license=_texts,
    backend=st.builds(
        md.BackendInfo,
        type=st.sampled_from(list(md.BackendType)),
        archs=st.none() | st.lists(_texts, max_size=3).map(tuple),
    ),
    python_depends=st.lists(_texts, max_size=3).map(tuple),
    kernel_depends=st.lists(_dependencies, max_size=3).map(tuple),
    kernels_minver=st.none() | st.tuples(*[st.integers(0, 999)] * 3).map(lambda v: "{}.{}.{}".format(*v)),
    upstream=st.none() | _urls,
    source=st.none() | _urls,
    digest=st.none()
    | st.builds(
        md.Digest,
        algorithm=st.sampled_from(list(md.Algorithm)),
        files=st.dictionaries(_texts, _texts, max_size=3),
    ),
    provenance=st.none()
    | st.builds(
        md.Provenance,
        kernel_builder=st.builds(md.BuilderVersion, version=_texts, git=st.none() | _git),
        kernel=st.none() | _git,
    ),
)


@given(_metadata)
def test_what_is_written_reads_back_here_and_in_the_loader(metadata: md.Metadata) -> None:
    text = metadata.dumps()
    assert md.loads(text) == metadata
    theirs = LoaderMetadata.from_bytes(text.encode())
    assert (theirs.id, str(theirs.name), theirs.version, theirs.license) == (
        metadata.id,
        metadata.name,
        metadata.version,
        metadata.license,
    )
    assert theirs.name.python_name == metadata.python_name
    assert theirs.python_depends == list(metadata.python_depends)
    assert str(theirs.backend.backend_type).lower() == str(metadata.backend.type)
    assert theirs.backend.archs == (None if metadata.backend.archs is None else list(metadata.backend.archs))
    assert [d.repo_id for d in theirs.kernel_depends] == [d.repo_id for d in metadata.kernel_depends]
    assert (theirs.digest and theirs.digest.files) == (metadata.digest and dict(metadata.digest.files))
    assert (theirs.provenance and theirs.provenance.dirty) == (
        metadata.provenance and metadata.provenance.dirty
    )


def _loader_accepts(content: bytes) -> bool:
    try:
        LoaderMetadata.from_bytes(content)
    except ValueError:
        return False
    return True


def _kbuild_accepts(content: bytes) -> bool:
    try:
        md.loads(content)
    except md.MetadataError:
        return False
    return True


_scalars = st.none() | st.booleans() | st.integers(-2, 2**65) | st.floats(allow_nan=False) | _texts
_values = st.recursive(
    _scalars | st.sampled_from([COMMIT, "cpu", "1.2.3", "sha256", "https://a.b/c"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "archs",
                    "algorithm",
                    "files",
                    "repo-id",
                    "version",
                    "revision",
                    "kernel",
                    "commit",
                    "dirty",
                ]
            )
            | _texts,
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


@settings(max_examples=300)
@given(
    key=st.sampled_from(
        [*SMALLEST, "kernel-depends", "kernels-minver", "upstream", "source", "digest", "provenance", "other"]
    ),
    value=_values,
)
def test_whatever_is_accepted_the_loader_accepts(key: str, value: Any) -> None:
    content = json.dumps({**SMALLEST, key: value}).encode()
    if _kbuild_accepts(content):
        assert _loader_accepts(content)


@pytest.mark.parametrize("key", list(SMALLEST))
def test_each_required_key_is_missed(key: str) -> None:
    document = {k: v for k, v in SMALLEST.items() if k != key}
    with pytest.raises(md.MetadataError, match=f"^here: {key} is missing$"):
        md.loads(json.dumps(document), source="here")
    assert not _loader_accepts(json.dumps(document).encode())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "1"}, "version must be a whole number, not a string"),
        ({"version": True}, "version must be a whole number, not a boolean"),
        ({"version": 1.0}, "version must be a whole number, not a number with"),
        ({"version": -1}, "version must lie between"),
        ({"version": 2**64}, "version must lie between"),
        ({"name": "a"}, "name must be at least two"),
        ({"name": "a_b"}, "name must be at least two"),
        ({"name": "ab\n"}, "name must be at least two"),
        ({"python-depends": None}, "python-depends must be a list, not null"),
        ({"python-depends": ["a", 1]}, r"python-depends\[1\] must be a string, not an integer"),
        ({"backend": "cpu"}, "backend must be an object, not a string"),
        ({"backend": {}}, "backend lacks 'type'"),
        ({"backend": {"type": "npu"}}, r"backend.type must be one of cann, .*, not 'npu'"),
        ({"kernel-depends": None}, "kernel-depends must be a list, not null"),
        (
            {"kernel-depends": [{"repo-id": "a/b"}]},
            r"kernel-depends\[0\] needs either a version or a revision",
        ),
        ({"kernel-depends": [{"repo-id": "a/b", "version": 1, "revision": "x"}]}, r"\[0\] needs either"),
        ({"kernel-depends": [{"repo-id": "a/b", "version": 1, "x": 1}]}, r"\[0\] has an unknown key 'x'"),
        ({"kernels-minver": "0.17"}, "kernels-minver must be three numbers"),
        ({"kernels-minver": "1.2.3-rc1"}, "kernels-minver must be three numbers"),
        ({"source": "github.com/a/b"}, "source must be a git address"),
        ({"upstream": ""}, "upstream must be a git address"),
        ({"upstream": "ftp://a/b"}, "upstream must be a git address"),
        ({"digest": {"algorithm": "SHA256", "files": {}}}, "digest.algorithm must be one of sha256, sha512"),
        ({"digest": {"algorithm": "sha256"}}, "digest lacks 'files'"),
        ({"digest": {"algorithm": "sha256", "files": {"a": 1}}}, r"digest.files\['a'\] must be a string"),
        ({"provenance": {}}, "provenance lacks 'kernel-builder'"),
        (
            {"provenance": {"kernel-builder": {"version": "1", "commit": COMMIT}}},
            "provenance.kernel-builder lacks 'dirty'",
        ),
        (
            {"provenance": {"kernel-builder": {"version": "1"}, "kernel": {"commit": "abc", "dirty": False}}},
            "provenance.kernel.commit must be 40 or 64",
        ),
    ],
)
def test_a_wrong_value_is_named_and_the_loader_refuses_it_too(change: dict[str, Any], message: str) -> None:
    content = json.dumps({**SMALLEST, **change}).encode()
    with pytest.raises(md.MetadataError, match=message) as caught:
        md.loads(content)
    assert caught.value.exit_code is ExitCode.FINDINGS
    assert not _loader_accepts(content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not JSON: .* at line 1, column 1"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b"{}\xff", "is not UTF-8"),
        (b"{} x", "is not JSON: Extra data"),
        (b"[]", "must be an object, not a list"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"name": "ab", "name": "ab"}', "'name' appears twice"),
        (b'{"a":' * 100_000, "recursion"),
    ],
)
def test_what_is_no_document_at_all(content: bytes, message: str) -> None:
    with pytest.raises(md.MetadataError, match=message):
        md.loads(content)
    assert not _loader_accepts(content)


def test_the_few_things_refused_here_only() -> None:
    text = json.dumps(SMALLEST)
    for content in (
        text[:-1].encode() + b', "x": 1, "x": 2}',
        text.replace("Apache-2.0", "\\ud800").encode(),
        json.dumps({**SMALLEST, "backend": ["cpu", None]}).encode(),
        json.dumps({**SMALLEST, "source": " https://a/b "}).encode(),
        json.dumps({**SMALLEST, "source": "ssh:"}).encode(),
    ):
        assert _loader_accepts(content) or b"ud800" in content
        assert not _kbuild_accepts(content)


def test_every_problem_is_reported_at_once() -> None:
    with pytest.raises(md.MetadataError) as caught:
        md.loads(json.dumps({"name": "X", "version": -1}))
    assert len(caught.value.problems) == 6


def test_the_old_name_of_a_commit_is_read_and_not_written() -> None:
    document = {**SMALLEST, "provenance": {"kernel-builder": {"version": "1", "sha": COMMIT, "dirty": True}}}
    metadata = md.loads(json.dumps(document))
    assert metadata.provenance is not None
    assert metadata.provenance.dirty
    assert '"sha"' not in metadata.dumps()


def test_nothing_is_written_that_would_not_do_as_a_module_name(tmp_path: Path) -> None:
    metadata = md.loads(json.dumps({**SMALLEST, "id": "a.b"}))
    with pytest.raises(md.MetadataError, match=r"id 'a\.b'"):
        metadata.write(tmp_path / "metadata.json")
    assert not (tmp_path / "metadata.json").exists()


def test_the_text_is_stable(tmp_path: Path) -> None:
    shuffled = dict(reversed(SMALLEST.items()))
    first, second = md.loads(json.dumps(SMALLEST)), md.loads(json.dumps(shuffled))
    first.write(tmp_path / "metadata.json")
    assert (tmp_path / "metadata.json").read_text() == second.dumps()
    assert second.dumps() == (
        '{\n  "name": "relu",\n  "id": "relu_cpu_abc",\n  "version": 1,\n  "license": "Apache-2.0",\n'
        '  "python-depends": [],\n  "kernel-depends": [],\n  "backend": {\n    "type": "cpu"\n  }\n}\n'
    )


@pytest.fixture
def variant(tmp_path: Path) -> Path:
    """A folder with one file of every kind the digest rules speak of."""
    folder = tmp_path / "torch-cpu"
    for name in (
        "__init__.py",
        "_relu.abi3.so",
        "metadata.json",
        "metadata.json.sigstore",
        "sub/metadata.json",
        "sub/deep/x.py",
        "sub/.hidden",
        "__pycache__/a.py",
        "sub/__pycache__/b.cpython-311.pyc",
        "sub/c.pyc",
        "sub/d.pyo",
        ".pyc",
        "naïve name.txt",
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode() * 1000)
    (folder / "empty").touch()
    (folder / "link").symlink_to("__init__.py")
    (folder / "folder-link").symlink_to("sub")
    os.mkfifo(folder / "fifo")
    return folder


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(md.Algorithm.SHA256, LoaderAlgorithm.SHA256), (md.Algorithm.SHA512, LoaderAlgorithm.SHA512)],
)
def test_the_digest_is_the_loaders(variant: Path, ours: md.Algorithm, theirs: LoaderAlgorithm) -> None:
    digest = md.digest_of(variant, ours)
    expected = LoaderDigest.hash_variant(theirs, variant)
    assert digest.files == expected.files
    assert set(digest.files) == {
        "__init__.py",
        "_relu.abi3.so",
        "sub/metadata.json",
        "sub/deep/x.py",
        "sub/.hidden",
        "sub/d.pyo",
        ".pyc",
        "naïve name.txt",
        "empty",
        "link",
    }


def test_a_broken_link_is_an_error(variant: Path) -> None:
    (variant / "broken").symlink_to("nowhere")
    with pytest.raises(OSError, match="broken"):
        md.digest_of(variant)


def test_a_digest_is_verified(variant: Path) -> None:
    document = md.loads(json.dumps(SMALLEST))
    document.write(variant / "metadata.json")
    assert md.verify_digest(variant) == ["metadata.json carries no digest"]

    sealed = md.loads(
        json.dumps(
            {**SMALLEST, "digest": {"algorithm": "sha256", "files": dict(md.digest_of(variant).files)}}
        )
    )
    sealed.write(variant / "metadata.json")
    assert md.verify_digest(variant) == []

    (variant / "empty").unlink()
    (variant / "sub/deep/x.py").write_text("changed")
    (variant / "stray").touch()
    assert md.verify_digest(variant) == [
        "empty is in the digest but not in the variant",
        "sub/deep/x.py does not match its digest",
        "stray is not in the digest",
    ]


def test_the_module_needs_nothing_but_the_standard_library() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import kbuild.metadata; print('click' in sys.modules)"
    )
    root = Path(md.__file__).resolve().parents[1]
    finished = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(root)], capture_output=True, text=True, check=False
    )
    assert finished.stdout == "False\n", finished.stderr
