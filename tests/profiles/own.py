"""Own profiles that this process has for a while: whoever asks afterwards lacks them."""

from collections.abc import Iterator
from contextlib import contextmanager

from tenure import own_profiles
from tenure.kernel import news, profiles
from tenure.kernel.decide import plans
from tests.profiles.samples import PLAIN

OURS = PLAIN.replace('name = "plain"', 'name = "ours"')


def bring(*texts: str) -> None:
    """Have exactly these from now on, as a process that starts with them."""
    own_profiles.load()  # which is done once: what comes later does not undo this
    profiles.bring({found.name: found for found in map(profiles.load_text, texts)})
    news.word_told.cache_clear()
    plans._checked.cache_clear()


@contextmanager
def having(*texts: str) -> Iterator[None]:
    """Have exactly these meanwhile; in the end none."""
    bring(*texts)
    try:
        yield
    finally:
        bring()
