"""Own profiles that this process has for a while: whoever asks afterwards lacks them."""

from collections.abc import Iterator
from contextlib import contextmanager

from tenure import custom_profiles
from tenure.kernel import notifications, profiles
from tenure.kernel.decide import plans
from tenure.kernel.profile import parse_profile
from tests.profiles.samples import PLAIN

OURS = PLAIN.replace('name = "plain"', 'name = "ours"')


def bring(*texts: str) -> None:
    """Have exactly these from now on, as a process that starts with them."""
    custom_profiles.load_custom_profiles()  # which is done once: what comes later does not undo this
    profiles.register_custom({found.name: found for found in map(parse_profile, texts)})
    notifications.changed_status_word.cache_clear()
    plans._checked.cache_clear()


@contextmanager
def having(*texts: str) -> Iterator[None]:
    """Have exactly these meanwhile; in the end none."""
    bring(*texts)
    try:
        yield
    finally:
        bring()
