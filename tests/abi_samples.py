"""Small libraries built with the machine's own compilers, each with one sin, and their good counterparts."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

STEM = "_relu_cpu_0123abcd"
NAME = f"{STEM}.abi3.so"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """`broken` are the codes of the rules that a cpu variant for PyTorch 2.13 breaks with it.

    `stubs` are sonames of empty libraries that it is linked with.
    """

    name: str
    source: str = ""
    flags: tuple[str, ...] = ()
    stubs: tuple[str, ...] = ()
    broken: frozenset[str] = frozenset()
    symbol: str | None = None
    init: bool = True
    cxx: bool = False

    def __str__(self) -> str:
        return self.name


SAMPLES = (
    Sample(
        name="good",
        source="""
#include <string.h>
#include <stdlib.h>
void *PyModule_Create2(void *, int);
void *copy(void *p, unsigned long n) { return memcpy(malloc(n), p, n); }
void *module(void *d) { return PyModule_Create2(d, 3); }
""",
    ),
    Sample(
        name="glibc-too-new",
        source="#include <pthread.h>\nint go(pthread_t *t, void *(*f)(void *)) { return pthread_create(t, 0, f, 0); }",
        broken=frozenset({"manylinux"}),
        symbol="pthread_create",
    ),
    Sample(
        name="libm-too-new",
        source="#include <math.h>\ndouble go(double x, double y) { return pow(x, y); }",
        flags=("-lm",),
        broken=frozenset({"manylinux"}),
        symbol="pow",
    ),
    Sample(
        name="libm-old-enough",
        source="#include <math.h>\ndouble go(double x) { return sin(x); }",
        flags=("-lm",),
    ),
    Sample(
        name="glibcxx-too-new",
        cxx=True,
        source="#include <filesystem>\nauto go() { return std::filesystem::current_path(); }",
        flags=("-std=c++17", "-fno-gnu-unique"),
        broken=frozenset({"manylinux"}),
        symbol="_ZNSt10filesystem12current_pathB5cxx11Ev",
    ),
    Sample(
        name="glibcxx-old-enough",
        cxx=True,
        source="#include <string>\nvoid go(std::string &s) { s.append(3, 'x'); }",
    ),
    Sample(
        name="relative-relocations-packed",
        source="static int x; int *table[] = {&x, &x, &x};",
        flags=("-Wl,-z,pack-relative-relocs",),
        broken=frozenset({"manylinux"}),
    ),
    Sample(
        name="python-too-new",
        source="void *PyType_GetName(void *); void *go(void *t) { return PyType_GetName(t); }",
        broken=frozenset({"python-abi"}),
        symbol="PyType_GetName",
    ),
    Sample(
        name="python-private",
        source="void *_PyObject_GetDictPtr(void *); void *go(void *t) { return _PyObject_GetDictPtr(t); }",
        broken=frozenset({"python-abi"}),
        symbol="_PyObject_GetDictPtr",
    ),
    Sample(name="library-unknown", stubs=("libhomemade.so.3",), broken=frozenset({"needed"})),
    Sample(name="library-of-cuda", stubs=("libcudart.so.13",), broken=frozenset({"needed"})),
    Sample(name="library-of-torch", stubs=("libc10.so", "libtorch_cpu.so", "libgomp.so.1")),
    Sample(
        name="runpath-absolute", flags=("-Wl,-rpath,/opt/lib:$ORIGIN",), broken=frozenset({"search-path"})
    ),
    Sample(
        name="rpath-absolute",
        flags=("-Wl,--disable-new-dtags,-rpath,/opt/lib",),
        broken=frozenset({"search-path"}),
    ),
    Sample(name="runpath-of-origin", flags=("-Wl,-rpath,$ORIGIN/../lib",)),
    Sample(
        name="store-path",
        source='const char *where = "/nix/store/00000000000000000000000000000000-gcc/lib";',
        broken=frozenset({"store-path"}),
    ),
    Sample(name="stack-executable", flags=("-Wl,-z,execstack",), broken=frozenset({"executable-stack"})),
    Sample(
        name="unique-symbol",
        cxx=True,
        source="template <class T> struct S { static T v; }; template <class T> T S<T>::v = 1;"
        "int *go() { return &S<int>::v; }",
        flags=("-fgnu-unique",),
        broken=frozenset({"unique-symbol"}),
        symbol="_ZN1SIiE1vE",
    ),
    Sample(
        name="unique-symbol-avoided",
        cxx=True,
        source="template <class T> struct S { static T v; }; template <class T> T S<T>::v = 1;"
        "int *go() { return &S<int>::v; }",
        flags=("-fno-gnu-unique",),
    ),
    Sample(
        name="string-of-torch",
        cxx=True,
        source="#include <string>\nnamespace c10::detail {\n"
        "[[noreturn]] void torchCheckFail(const char *, const char *, unsigned, const std::string &);\n}\n"
        'void go(const std::string &s) { c10::detail::torchCheckFail("f", "g", 1, s); }',
        flags=("-std=c++17",),
        stubs=("libc10.so",),
    ),
    Sample(
        name="string-from-before-cxx11",
        cxx=True,
        source="#include <string>\nvoid go(std::string &s) { s.append(3, 'x'); }",
        flags=("-D_GLIBCXX_USE_CXX11_ABI=0",),
        broken=frozenset({"string-abi"}),
    ),
    Sample(
        name="string-of-torch-from-before-cxx11",
        cxx=True,
        source="#include <string>\nnamespace c10::detail {\n"
        "[[noreturn]] void torchCheckFail(const char *, const char *, unsigned, const std::string &);\n}\n"
        'void go(const std::string &s) { c10::detail::torchCheckFail("f", "g", 1, s); }',
        flags=("-std=c++17", "-D_GLIBCXX_USE_CXX11_ABI=0"),
        stubs=("libc10.so",),
        broken=frozenset({"string-abi", "torch-symbol"}),
        symbol="_ZN3c106detail14torchCheckFailEPKcS2_jRKSs",
    ),
    Sample(
        name="torch-symbol-missing",
        cxx=True,
        source="namespace at { void no_such_function(int); }\nvoid go() { at::no_such_function(1); }",
        stubs=("libtorch_cpu.so",),
        broken=frozenset({"torch-symbol"}),
        symbol="_ZN2at16no_such_functionEi",
    ),
    Sample(
        name="torch-symbol-of-cuda",
        cxx=True,
        source="namespace c10::cuda { int device_count() noexcept; }\nint go() { return c10::cuda::device_count(); }",
        flags=("-std=c++17",),
        stubs=("libtorch_cpu.so",),
        broken=frozenset({"torch-symbol"}),
        symbol="_ZN3c104cuda12device_countEv",
    ),
    Sample(
        name="torch-not-needed",
        cxx=True,
        source="namespace at { int get_num_threads(); }\nint go() { return at::get_num_threads(); }",
        broken=frozenset({"unresolved-symbol"}),
    ),
    Sample(
        name="source-forgotten",
        cxx=True,
        source="void relu_forward(float *, int);\nvoid go(float *p) { relu_forward(p, 1); }",
        broken=frozenset({"unresolved-symbol"}),
        symbol="_Z12relu_forwardPfi",
    ),
    Sample(
        name="weak-symbol-may-be-missing",
        source="__attribute__((weak)) void maybe(void); void go(void) { if (maybe) maybe(); }",
    ),
    Sample(name="no-module", source="int x;", init=False, broken=frozenset({"module"})),
)


def build(sample: Sample, folder: Path) -> Path:
    """Compile and link one sample naively, as most people's build scripts do; returns the library."""
    folder.mkdir(parents=True)
    source = folder / ("k.cpp" if sample.cxx else "k.c")
    init = f"void *PyInit_{STEM}(void) {{ return 0; }}\n"
    if sample.cxx:
        init = f'extern "C" {init}'
    source.write_text(sample.source + "\n" + (init if sample.init else ""))
    stubs = [make_stub(soname, folder) for soname in sample.stubs]
    library = folder / NAME
    compiler = "g++" if sample.cxx else "gcc"
    cc(
        [
            compiler,
            "-O1",
            "-g",
            "-fPIC",
            "-shared",
            "-Wl,--no-as-needed",
            source,
            *stubs,
            "-o",
            library,
            *sample.flags,
        ]
    )
    return library


def nvcc() -> str | None:
    """The CUDA compiler: the one on the path, else one that a build has left in the Nix store."""
    stored = sorted(Path("/nix/store").glob("*-cuda-toolkit-13.*/bin/nvcc"))
    return shutil.which("nvcc") or (str(stored[-1]) if stored else None)


def make_stub(soname: str, folder: Path) -> Path:
    """An empty library that goes by the name of a real one."""
    path = folder / soname
    cc(["gcc", "-shared", "-nostdlib", f"-Wl,-soname,{soname}", "-x", "c", "/dev/null", "-o", path])
    return path


def cc(argv: list[str | Path]) -> None:
    subprocess.run([str(word) for word in argv], check=True, capture_output=True, text=True)


def stripped(library: Path) -> Path:
    """A copy without static symbols and debug information, under the same name."""
    return _copy(library, "stripped", ["strip", "--strip-all"])


def without_sections(library: Path) -> Path:
    """A copy without section headers, all that the loader needs and no more."""
    copy = _copy(library, "sectionless", ["strip", "--strip-all"])
    content = bytearray(copy.read_bytes())
    content[0x28:0x30] = bytes(8)  # e_shoff
    content[0x3A:0x40] = bytes(6)  # e_shentsize, e_shnum, e_shstrndx
    copy.write_bytes(content)
    return copy


def _copy(library: Path, folder: str, argv: list[str]) -> Path:
    copy = library.parent / folder / library.name
    copy.parent.mkdir(exist_ok=True)
    cc([*argv, "-o", copy, library])
    return copy
