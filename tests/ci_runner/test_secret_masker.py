"""Secrets in the output of a job."""

import base64
from random import Random
from urllib.parse import quote

import pytest

from tenure.ci_runner.secret_masker import FORM_BYTES_MAX, MASK, SecretMasker

SECRET = b'hunter2"+/?secret'


def mask(secrets: list[bytes], *pieces: bytes) -> bytes:
    masker = SecretMasker(secrets)
    return b"".join(map(masker.feed, pieces)) + masker.flush()


@pytest.mark.parametrize("seed", range(20))
def test_a_secret_is_masked_wherever_the_output_is_split(seed: int) -> None:
    chance = Random(seed)
    for _ in range(50):
        secrets = [bytes(chance.choices(b"abc", k=chance.randint(4, 9))) for _ in range(chance.randint(1, 3))]
        text = bytes(chance.choices(b"abcx", k=60))
        cuts = sorted(chance.choices(range(60), k=chance.randint(0, 20)))
        pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, 60], strict=True)]
        assert mask(secrets, *pieces) == mask(secrets, text), (secrets, text, cuts)
        assert not any(secret in mask(secrets, text) for secret in secrets)


@pytest.mark.parametrize(
    "form",
    [
        SECRET,
        quote(SECRET).encode(),
        quote(SECRET, safe="").encode(),
        b'hunter2\\"+/?secret',
        base64.b64encode(b"user:" + SECRET + b"@host"),
        base64.b64encode(b"u:" + SECRET),
        base64.urlsafe_b64encode(b"us:" + SECRET),
    ],
)
def test_usual_encodings_of_a_secret_are_masked(form: bytes) -> None:
    masked = mask([SECRET], b"before ", *(form[at : at + 1] for at in range(len(form))), b" after")
    assert MASK in masked
    assert len(masked) < len(b"before  after") + 20


def test_lines_of_a_secret_and_long_secrets_are_masked() -> None:
    key = b"-----BEGIN KEY-----\nabcdefgh\nijklmnop\n-----END KEY-----"
    assert mask([key], b"x abcdefgh y\nijklmnop\n") == b"x *** y\n***\n"
    long = bytes(Random(1).choices(range(33, 127), k=FORM_BYTES_MAX * 3))
    assert long[-100:] not in mask([long], long[:5000], long[5000:])


def test_output_that_is_no_secret_passes_at_once() -> None:
    masker = SecretMasker([b"hunter2"])
    assert masker.feed(b"all is well\n") == b"all is well\n"
    assert masker.feed(b"hunt") == b""
    assert masker.feed(b"ing\n") == b"hunting\n"
    assert SecretMasker([]).feed(b"hunter2") == b"hunter2"
