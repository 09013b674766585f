"""The include scanner sees what a preprocessor would."""

from hypothesis import given
from hypothesis import strategies as st

from kbuild.sources.includes import includes

SOURCE = r"""// #include "no.h"
/* #include "no.h"
#include "no.h" */
#pragma once
#ifndef A_H
#define A_H
#include "a.h" // why
#  include <b.h>
const char *s = "#include \"no.h\""; auto r = R"x(
#include "no.h"
)x"; int n = 1'000; char c = '"'; auto u = u8'x'; // it's
#include "c.h"
#ifdef USE_ROCM
#include "d.h"
#else
#include "e.h"
#endif
#error don't
#include "f.h"
// goes on \
#include "no.h"
#include MACRO
#if 0
it's
#endif
#endif
#include "after.h"
"""


def test_what_is_and_what_is_not_an_include() -> None:
    found = [(i.target, i.quoted, i.conditional) for i in includes(SOURCE)]
    assert found == [
        ("a.h", True, False),
        ("b.h", False, False),
        ("c.h", True, False),
        ("d.h", True, True),
        ("e.h", True, True),
        ("f.h", True, False),
        ("after.h", True, False),
    ]


def test_places_point_at_the_target() -> None:
    lines = SOURCE.split("\n")
    for include in includes(SOURCE):
        assert lines[include.line - 1][include.column - 1 :].startswith(include.target)


def test_a_condition_that_is_no_guard() -> None:
    assert includes('#ifndef FAST\n#include "slow.h"\n#endif\n')[0].conditional
    text = '#ifndef FAST\n#define OTHER\n#include "slow.h"\n#endif\n'
    assert includes(text)[0].conditional
    assert includes('#include "x.h"\n#ifndef A\n#define A\n#include "y.h"\n#endif\n')[1].conditional


@given(st.text(alphabet="#includefdh \"<>/*\\\n'R()x1.", max_size=120))
def test_any_text_is_scanned(text: str) -> None:
    for include in includes(text):
        assert 1 <= include.line <= text.count("\n") + 1
