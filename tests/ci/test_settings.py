"""The settings of repositories."""

import pytest

from tenure.ci.settings import find_url_problem, load_settings
from tenure.errors import TenureError

FULL = """\
repositories:
  shop:
    url: https://example.com/acme/shop.git
    github: acme/shop
    default_branch: trunk
    trusted_branches: [trunk, release/*]
    config: ci/tenure.yaml
    planning_timeout: 90s
    supersede: refs
    fetch: {timeout: 1m, size: 1GiB, credential: env:GIT_TOKEN}
    allow:
      labels: [linux, gpu]
      network: [pypi.org, "*.pythonhosted.org"]
      secrets:
        TOKEN: {}
        DEPLOY: {branches: [trunk], pull_requests: true}
      services: true
      timeout: 30m
      jobs: 50
      limits: {memory: 8GiB}
      retention: 7d
    failure_rules:
      - {code: NETWORK_MIRROR, output: "mirror .* timed out", phase: commands, exit_codes: [7]}
  local:
    path: /srv/git/local.git
"""


def test_settings_are_read_in_full() -> None:
    settings = load_settings(FULL)
    shop = settings.find("acme/Shop")
    assert shop is settings.find("shop")
    assert (shop.default_branch, shop.trusted_branches, shop.config) == (
        "trunk",
        ("trunk", "release/*"),
        "ci/tenure.yaml",
    )
    assert (shop.planning_seconds, shop.supersede, shop.protocols) == (90.0, "refs", ("https", "ssh"))
    assert (shop.fetch.size_bytes, shop.fetch.credential) == (1 << 30, "env:GIT_TOKEN")
    assert shop.allow.secrets["DEPLOY"].branches == ("trunk",)
    assert (shop.allow.limits.memory_bytes, shop.allow.limits.processes) == (8 << 30, 512)
    assert (shop.allow.timeout_seconds, shop.allow.retention_seconds) == (1800.0, 7 * 86_400)
    assert shop.failure_rules[0].code == "NETWORK_MIRROR"
    local = settings.find("local")
    assert (local.url, local.protocols) == ("/srv/git/local.git", ("file",))
    assert local.allow.labels == ()
    assert local.allow.services is False


def test_an_unknown_repository_has_an_error_of_its_own() -> None:
    with pytest.raises(TenureError, match="no repository 'other'"):
        load_settings(FULL).find("other")


CASES = {
    "nothing to fetch": ("{github: a/b}", "either a url or a path"),
    "a protocol that is not allowed": ("{url: 'http://example.com/x.git'}", "uses http; the protocols"),
    "a path without the protocol": ("{url: /srv/x.git}", "uses file"),
    "a helper program": ("{url: 'ext::sh -c id'}", "without blanks"),
    "an option": ("{url: '--upload-pack=id'}", "must be a URL"),
    "a remote helper": ("{url: 'https::https://example.com/x'}", "must"),
    "credentials in a URL": ("{url: 'https://me:secret@example.com/x.git'}", "must not contain credentials"),
    "a secret that is no reference": (
        "{url: 'https://e.com/x', fetch: {credential: ghp_abc}}",
        "must be a reference",
    ),
    "a relative path": ("{path: srv/x.git}", "must be absolute"),
    "a config that leaves": ("{path: /x, config: ../ci.yaml}", "leave the workspace"),
    "a wrong expression": (
        "{path: /x, failure_rules: [{code: X, output: '('}]}",
        "is not a regular expression",
    ),
    "all labels": ("{path: /x, allow: {labels: ['*']}}", "lower-case letters"),
    "all hosts": ("{path: /x, allow: {network: ['*']}}", "HOST"),
    "a wrong size": ("{path: /x, allow: {limits: {memory: lots}}}", "a size such as"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_problem_of_the_settings_has_its_line_and_column(case: str) -> None:
    values, says = CASES[case]
    with pytest.raises(TenureError) as failed:
        load_settings(f"repositories:\n  one: {values}\n", "ci.yaml")
    assert failed.value.code == "CI_SETTINGS_INVALID"
    assert failed.value.details[0].path.startswith("ci.yaml:2:")
    assert says in failed.value.message
    assert "ghp_abc" not in failed.value.message
    assert "secret@" not in failed.value.message


def test_two_repositories_cannot_have_one_name_at_github() -> None:
    with pytest.raises(TenureError, match="already the repository 'a'"):
        load_settings("repositories: {a: {path: /a, github: x/y}, b: {path: /b, github: X/Y}}")


def test_the_usual_forms_of_urls_are_allowed() -> None:
    for url in ("https://example.com/a/b.git", "ssh://git@example.com/a/b", "git@example.com:a/b.git"):
        assert find_url_problem(url, ("https", "ssh")) == ""
