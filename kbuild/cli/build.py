"""`kbuild build`: check, select, build with Nix, verify, put into build/."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import click

from kbuild import cachedir, host, nixcmd, provenance
from kbuild.abi.verify import verify_variant
from kbuild.cli.progress import BuildProgress
from kbuild.cli.transfer import TransferProgress
from kbuild.errors import ExitCode, FindingsError, UsageError
from kbuild.machine import installed_torch
from kbuild.nix_errors import explain, never_started
from kbuild.project import Project
from kbuild.toolchain.fetch import ensure
from kbuild.toolchain.store import Store
from kbuild.variants import Chosen, Matrix, Selection, Skipped, best_for_machine, chosen, pick, select
from kbuild.workspace import BuildFolder, build_folder, builder_inputs, same_content, workspace


class Status(StrEnum):
    """What became of one variant."""

    BUILT = "built"
    UNCHANGED = "unchanged"
    FAILED = "failed"
    REJECTED = "rejected"
    SKIPPED = "skipped"
    PLANNED = "planned"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One variant's line in the result: where it is, or why it is not, and the kept log of a failure."""

    variant: str
    status: Status
    reason: str | None = None
    path: str | None = None
    log: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "variant": self.variant,
            "status": self.status.value,
            "reason": self.reason,
            "path": self.path,
            "log": self.log,
        }


@click.command()
@click.argument("path", type=click.Path(path_type=Path), required=False)
@click.option("--all-variants", is_flag=True, help="Build every variant that can be built.")
@click.option("--variant", "names", multiple=True, metavar="NAME", help="Build this variant (repeatable).")
@click.option("--max-jobs", "-j", type=click.IntRange(1), help="Units compiled at the same time.")
@click.option("--cores", type=click.IntRange(1), help="Threads of one nvcc call.")
@click.option("--builders", metavar="SPEC", help="Remote builders, as Nix takes them.")
@click.option("--store", metavar="URL", help="Another Nix store, as `nix --store` takes it.")
@click.option("--option", "options", nargs=2, multiple=True, metavar="NAME VALUE", help="A Nix setting.")
@click.option("--print-build-logs", "-L", "show_logs", is_flag=True, help="Show the compilers' output.")
@click.option("--dry-run", is_flag=True, help="Say what would be compiled; build nothing.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable result.")
@click.pass_context
def build(
    ctx: click.Context,
    path: Path | None,
    all_variants: bool,
    names: tuple[str, ...],
    max_jobs: int | None,
    cores: int | None,
    builders: str | None,
    store: str | None,
    options: tuple[tuple[str, str], ...],
    show_logs: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Build variants of the project at PATH into PATH/build/<variant>.

    Without --all-variants or --variant: the best variant for the PyTorch of this machine. A variant that fails to
    build or to verify leaves build/<variant> as it was.
    """
    if all_variants and names:
        raise UsageError("--all-variants and --variant exclude each other")
    project = Project.open(path)
    if not project.report.ok:
        click.echo(project.report.as_text(), err=True)
        raise FindingsError(
            f"{project.root} has errors: nothing was built", hint="fix them; `kbuild check` lists them"
        )
    selection = select(project.require_config(), Matrix.load())
    wanted = _wanted(selection, all_variants, names)
    outcomes = [
        Outcome(variant=s.name, status=Status.SKIPPED, reason=s.reason)
        for s in selection
        if all_variants and isinstance(s, Skipped)
    ]

    nix = nixcmd.probe(store)
    compiler = host.detect()
    settings = nixcmd.Settings(
        max_jobs=max_jobs or host.jobs(), cores=cores or host.threads(), builders=builders, options=options
    )
    with TransferProgress() as transfer:
        ensure(
            sorted({tree for v in wanted for tree in v.trees}),
            nix=Store(options=nix.store_options),
            progress=transfer,
        )
    git = provenance.of(project.root)
    session = {
        "host": compiler.as_json(),
        "provenance": None if git is None else {"commit": git.commit, "dirty": git.dirty},
    }
    with workspace(project.root, list(project.visible_files()), session) as place:
        inputs = ["kbuild"] if place.generated_flake else builder_inputs(nix.flake_inputs(place.project))
        overrides = dict.fromkeys(inputs, place.builder)
        recipes = nix.evaluate(place.project, [v.name for v in wanted], overrides)
    plan = _Plan(nix=nix, host=compiler, settings=settings, recipes=recipes)
    if dry_run:
        outcomes += _planned(plan, wanted)
    else:
        with build_folder(project.root) as folder:
            outcomes += _build(plan, wanted, folder, show_logs=show_logs)
    _print(outcomes, project, as_json=as_json)
    ctx.exit(_exit_code(outcomes))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    nix: nixcmd.Nix
    host: host.Host
    settings: nixcmd.Settings
    recipes: dict[str, nixcmd.Derivation]

    @property
    def drvs(self) -> list[str]:
        return [recipe.drv for recipe in self.recipes.values()]

    def to_build(self) -> frozenset[str]:
        return self.nix.to_build(self.drvs, self.host, self.settings)


def _wanted(selection: Selection, all_variants: bool, names: tuple[str, ...]) -> tuple[Chosen, ...]:
    candidates = chosen(selection)
    if not candidates:
        reasons = "\n".join(f"  {s.name}: {s.reason}" for s in selection if isinstance(s, Skipped))
        raise FindingsError(f"no variant of this project can be built:\n{reasons}")
    if all_variants:
        return candidates
    if names:
        return pick(selection, names)
    here = installed_torch()
    if here is None:
        best = best_for_machine(candidates, torch=None, cuda=None)
    else:
        best = best_for_machine(candidates, torch=here.torch, cuda=here.cuda)
        best = best or best_for_machine(candidates, torch=here.torch, cuda=None)
    if best is None:
        found = (
            "no PyTorch was found" if here is None else f"PyTorch {here.torch} (CUDA {here.cuda or 'none'})"
        )
        raise UsageError(
            f"no variant fits this machine: {found}", hint="name one with --variant, or use --all-variants"
        )
    return (best,)


def _planned(plan: _Plan, wanted: Iterable[Chosen]) -> list[Outcome]:
    missing = plan.to_build()
    needs = plan.nix.closures(plan.drvs)
    outcomes = []
    for variant in wanted:
        steps = sorted(nixcmd.step_name(drv) for drv in needs[plan.recipes[variant.name].drv] & missing)
        reason = f"would run {', '.join(steps)}" if steps else "is built already"
        outcomes.append(Outcome(variant=variant.name, status=Status.PLANNED, reason=reason))
    return outcomes


def _build(plan: _Plan, wanted: tuple[Chosen, ...], folder: BuildFolder, *, show_logs: bool) -> list[Outcome]:
    missing = plan.to_build()
    needs = plan.nix.closures(plan.drvs) if missing else {}
    todo = {v.name: needs.get(plan.recipes[v.name].drv, frozenset()) & missing for v in wanted}
    events = nixcmd.Events()
    if missing:
        results = {name: plan.nix.physical(recipe.out) for name, recipe in plan.recipes.items()}
        with BuildProgress(todo, results, show_logs=show_logs) as progress:
            events.on_change, events.on_log = progress.update, progress.log
            plan.nix.build(plan.drvs, plan.host, plan.settings, events)
    absent = plan.nix.absent([recipe.out for recipe in plan.recipes.values()]) if missing else frozenset()
    outcomes = []
    for variant in wanted:
        recipe = plan.recipes[variant.name]
        if recipe.out in absent:
            outcomes.append(_failure(plan, variant, todo[variant.name], events))
        else:
            outcomes.append(_accept(variant, plan.nix.physical(recipe.out), folder))
    return outcomes


def _accept(variant: Chosen, result: Path, folder: BuildFolder) -> Outcome:
    """Verify a result and put it into build/; what is there already in the same form stays as it is."""
    final = folder.path / variant.name
    unchanged = same_content(result, final)
    candidate = final if unchanged else folder.incoming(variant.name, result)
    verdict = verify_variant(candidate, variant=variant.variant)
    if not verdict.ok:
        if not unchanged:
            folder.discard(candidate)
        reason = "\n".join(f"{v.path}: {v.message}" for v in verdict.violations)
        return Outcome(variant=variant.name, status=Status.REJECTED, reason=reason, path=str(result))
    if not unchanged:
        folder.accept(variant.name, candidate)
    return Outcome(
        variant=variant.name, status=Status.UNCHANGED if unchanged else Status.BUILT, path=str(final)
    )


def _failure(plan: _Plan, variant: Chosen, todo: frozenset[str], events: nixcmd.Events) -> Outcome:
    """Why a variant did not build: the compiler's words and the kept log, or what Nix said."""
    broken = [drv for drv in events.failed if drv in todo]
    logs = {drv: plan.nix.log(drv) for drv in broken}
    failed = next((drv for drv in broken if logs[drv]), None)
    if failed is None or never_started(logs[failed]):
        error = explain("\n".join([*events.messages, *logs.values()]), "Nix gave up")
        reason = error.message if error.hint is None else f"{error.message}\nhint: {error.hint}"
        return Outcome(variant=variant.name, status=Status.FAILED, reason=reason)
    kept = cachedir.path("logs") / f"{variant.name}-{nixcmd.step_name(failed)}.log"
    kept.write_text(logs[failed])
    lines = "\n".join(nixcmd.compiler_errors(logs[failed]))
    return Outcome(
        variant=variant.name,
        status=Status.FAILED,
        reason=f"{nixcmd.step_name(failed)}:\n{lines}",
        log=str(kept),
    )


def _print(outcomes: list[Outcome], project: Project, *, as_json: bool) -> None:
    """The result on stdout; what went wrong, in full, on stderr."""
    if as_json:
        document = {"version": 1, "project": str(project.root), "variants": [o.as_json() for o in outcomes]}
        click.echo(json.dumps(document, indent=2))
    else:
        width = max((len(o.variant) for o in outcomes), default=0)
        for outcome in outcomes:
            first = (outcome.reason or outcome.path or "").partition("\n")[0]
            click.echo(f"{outcome.variant:{width}}  {outcome.status:9}  {first}".rstrip())
    for outcome in outcomes:
        if outcome.status in (Status.FAILED, Status.REJECTED):
            click.echo(f"\nerror: {outcome.variant} {outcome.status}\n{outcome.reason}", err=True)
            if outcome.log is not None:
                click.echo(f"the whole log: {outcome.log}", err=True)


def _exit_code(outcomes: list[Outcome]) -> ExitCode:
    statuses = {outcome.status for outcome in outcomes}
    if Status.FAILED in statuses:
        return ExitCode.BUILD
    return ExitCode.FINDINGS if Status.REJECTED in statuses else ExitCode.OK
