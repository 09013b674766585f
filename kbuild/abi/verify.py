"""The ABI verification: every rule over a variant's folder and over each library in it."""

from dataclasses import replace
from pathlib import Path

from kbuild.abi import elf, policies
from kbuild.abi.checks import RULES
from kbuild.abi.fatbin import BadFatbinError
from kbuild.abi.layout import TREE_RULES, Tree, read_tree
from kbuild.abi.verdict import Context, Result, StableAbi, Verdict, Violation
from kbuild.config.model import Backend, Capability, Version
from kbuild.variants import Compute, NoarchVariant, StableAbiVariant, TorchVariant, TvmFfiVariant, Variant


def verify_variant(directory: Path, *, variant: Variant | None = None) -> Verdict:
    """Judge one variant's folder; what it is meant to be is read from its name unless `variant` says it.

    Raises OSError where the folder cannot be read.
    """
    tree = read_tree(directory, variant=variant)
    results = [
        Result(code=rule.code, title=rule.title, path=".", found="", skipped=reason)
        if (reason := rule.missing(tree)) is not None
        else Result(
            code=rule.code,
            title=rule.title,
            path=".",
            found=rule.found(tree),
            violations=tuple(rule.check(tree)),
        )
        for rule in TREE_RULES
    ]
    context = context_for(tree.variant, archs=_declared_archs(tree))
    for library in tree.libraries:
        results += verify_library(directory / library, replace(context, path=library)).results
    unverified: tuple[str, ...] = ()
    if isinstance(tree.variant, TorchVariant | StableAbiVariant):
        unverified = tuple({r.skipped for r in results if r.code == "torch-symbol" and r.skipped is not None})
    return Verdict(subject=directory, results=tuple(results), unverified=unverified)


def verify_library(path: Path, context: Context) -> Verdict:
    """Judge one library as what `context` says it is. Raises OSError where it cannot be read."""
    try:
        facts = elf.read(path)
    except (elf.UnreadableElfError, BadFatbinError) as error:
        violation = Violation(
            code="unreadable",
            message=f"is not a readable ELF library: {error}",
            path=context.path,
            hint="a build or a download was cut short, or this is another kind of file: make it anew",
        )
        result = Result(
            code="unreadable", title="ELF", path=context.path, found="unreadable", violations=(violation,)
        )
        return Verdict(subject=path, results=(result,))
    results = [
        Result(code=rule.code, title=rule.title, path=context.path, found="", skipped=reason)
        if (reason := rule.missing(context)) is not None
        else Result(
            code=rule.code,
            title=rule.title,
            path=context.path,
            found=rule.found(facts, context),
            violations=tuple(rule.check(facts, context)),
        )
        for rule in RULES
    ]
    return Verdict(subject=path, results=tuple(results))


def context_for(variant: Variant | None, *, archs: tuple[Capability, ...] | None = None) -> Context:
    """What the libraries of a variant are meant to be; a Context that knows nothing for None."""
    match variant:
        case TorchVariant():
            context = torch_context(variant.torch, variant.compute)
            # A name without a tag says nothing; every PyTorch since 2.7 uses the C++11 strings.
            cxx11 = True if variant.cxx11 is None else variant.cxx11
            return replace(context, machine=variant.arch, cxx11=cxx11, archs=archs)
        case StableAbiVariant():
            known = [Version.parse(release) for release in policies.torch_releases()]
            if variant.torch not in known:
                return replace(_unknown_release(variant.torch), compute=variant.compute, archs=archs)
            releases = tuple(_release(release) for release in known if not release < variant.torch)
            return Context(
                path="",
                machine=variant.arch,
                compute=variant.compute,
                torch=StableAbi(releases=releases),
                archs=archs,
            )
        case TvmFfiVariant():
            return Context(
                path="",
                machine=variant.arch,
                compute=variant.compute,
                no_torch="a tvm-ffi variant uses no PyTorch",
                archs=archs,
            )
        case NoarchVariant() | None:
            return Context(path="")


def torch_context(release: Version | None, compute: Compute | None) -> Context:
    """A library for one PyTorch release and one backend, each None where it is not known."""
    if release is None:
        return Context(path="", compute=compute)
    symbols = policies.torch_release(f"{release.major}.{release.minor}")
    if symbols is None:
        return replace(_unknown_release(release), compute=compute)
    return Context(path="", compute=compute, torch=symbols, cxx11=True)


def _release(release: Version) -> policies.TorchRelease:
    symbols = policies.torch_release(str(release))
    assert symbols is not None
    return symbols


def _unknown_release(release: Version) -> Context:
    known = ", ".join(policies.torch_releases())
    return Context(path="", no_torch=f"the symbols of PyTorch {release} are not known (those of {known} are)")


def _declared_archs(tree: Tree) -> tuple[Capability, ...] | None:
    if tree.metadata is None or tree.backend is not Backend.CUDA:
        return None
    try:
        return tuple(Capability.parse(text) for text in tree.metadata.backend.archs or ())
    except ValueError:
        return None  # the rule `agreement` says so
