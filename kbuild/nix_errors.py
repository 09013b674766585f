"""What Nix's failures mean, and the way out of each."""

import re

from kbuild.errors import BuildError, HubError, KbuildError, MachineError

# Colours, and g++'s "erase to the end of the line" beside each.
ANSI = re.compile(r"\x1b\[[0-9;]*[mK]")

# What surrounds a sentence in Nix's output.
_NOISE = " ':;"

# What stands in a step's log where the sandbox lacks this machine's programs: the daemon ignored `sandbox-paths`.
_NOT_STARTED = r"executing '/[^']+': No such file or directory"

# What Nix says -> what to do about it. The first pattern that matches wins.
_WAYS_OUT: tuple[tuple[str, type[KbuildError], str, str], ...] = (
    (
        r"No space left on device|database or disk is full|lack of free disk space",
        MachineError,
        "the disk is full",
        "free space in the Nix store (nix-collect-garbage) or build into another one (--store PATH)",
    ),
    (
        r"ignoring the client-specified setting|not a trusted user|restricted setting|" + _NOT_STARTED,
        MachineError,
        "the Nix daemon does not let this user choose the sandbox",
        "add the user to `trusted-users` in /etc/nix/nix.conf and restart nix-daemon",
    ),
    (
        r"experimental (?:Nix )?feature '?\S+?'? is disabled",
        MachineError,
        "this Nix refuses flakes even when asked",
        "put `experimental-features = nix-command flakes` into ~/.config/nix/nix.conf",
    ),
    (
        r"(?:cloning|mount|unshare|namespace|pivot_root).*(?:not permitted|Invalid argument)|error:.*build.users",
        MachineError,
        "Nix cannot set up its build sandbox here",
        "run where user namespaces are allowed (in a container: --privileged), or as root",
    ),
    (
        r"Permission denied|opening lock file|cannot open connection to remote store|cannot connect to socket",
        MachineError,
        "this user cannot write to the Nix store",
        "start nix-daemon, run as root, or build into a store of your own (--store PATH)",
    ),
    (
        r"unable to download|Could(?:n't| not) resolve host|Couldn't connect|cannot download",
        HubError,
        "Nix tried to download something and could not",
        "if flake.nix has inputs besides the builder, fetch them first: nix flake archive",
    ),
)


def never_started(log: str) -> bool:
    """Whether a build log is Nix's own, since the sandbox did not have the program to run."""
    return re.search(_NOT_STARTED, ANSI.sub("", log)) is not None


def explain(output: str, otherwise: str) -> KbuildError:
    """The error for a failed Nix command: a known kind of trouble with its way out, else Nix's own last words."""
    text = ANSI.sub("", output).strip()
    for pattern, error, message, hint in _WAYS_OUT:
        found = re.search(pattern, text)
        if found is not None:
            line = next(line for line in text.splitlines() if found[0].splitlines()[0] in line)
            return error(f"{message}: {line.strip(_NOISE)}", hint=hint)
    errors = [line for line in text.splitlines() if "error:" in line] or text.splitlines()[-5:]
    return BuildError(f"{otherwise}:\n" + "\n".join(dict.fromkeys(errors)))
