"""Capabilities: the text that names a step's queue and its tool or workflow version."""

import pytest

from tenure.errors import TenureError
from tenure.kernel import capability as cap
from tenure.limits import NAME_CHARS_MAX


@pytest.mark.parametrize("what", [cap.RUN, cap.tool("github.label"), cap.flow("release", "2")])
def test_a_capability_splits_into_its_parts(what: str) -> None:
    assert cap.capability("default", what) == f"default|{what}"
    assert cap.split(cap.capability("default", what)) == ("default", what)


def test_a_plain_queue_needs_no_encoding() -> None:
    assert cap.split("default") == ("default", "")


@pytest.mark.parametrize(
    ("queue", "what"), [("a|b", "run"), ("a", "tool:x|y"), ("", "run"), ("a", ""), ("a\n", "run")]
)
def test_ambiguous_parts_are_refused(queue: str, what: str) -> None:
    with pytest.raises(TenureError, match="without '\\|'"):
        cap.capability(queue, what)


def test_a_capability_fits_a_queue() -> None:
    name = "t" * (NAME_CHARS_MAX - len("default|tool:"))
    assert len(cap.capability("default", cap.tool(name))) == NAME_CHARS_MAX
    with pytest.raises(TenureError, match="at most 200"):
        cap.capability("default", cap.tool(name + "t"))
