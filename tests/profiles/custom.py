"""Custom profiles for tests."""

from collections.abc import Iterator
from contextlib import contextmanager

from tenure import custom_profiles
from tenure.kernel import notifications, profiles
from tenure.kernel.decide import plans
from tenure.kernel.profile import parse_profile
from tests.profiles.samples import PLAIN

OURS = PLAIN.replace('name = "plain"', 'name = "ours"')


def use_profiles(*texts: str) -> None:
    """Make these the only custom profiles of this process, as if it had started with them."""
    custom_profiles.load_custom_profiles()  # this loads once, so that a later call does not replace these
    profiles.register_custom({found.name: found for found in map(parse_profile, texts)})
    notifications.changed_status_word.cache_clear()
    plans._checked.cache_clear()


@contextmanager
def profiles_in_use(*texts: str) -> Iterator[None]:
    """Make these the only custom profiles during the block; afterwards there are none."""
    use_profiles(*texts)
    try:
        yield
    finally:
        use_profiles()
