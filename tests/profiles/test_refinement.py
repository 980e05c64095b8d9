"""The proof passes for every profile, and fails if a profile is changed."""

from itertools import product

import pytest
from msgspec.structs import replace

from tenure.kernel import profiles, refinement
from tenure.kernel.machines import RUN_PATHS
from tenure.kernel.profile import (
    ENTITIES,
    MACHINE_OF,
    DocumentEdge,
    Entity,
    ExtraEdge,
    IndirectEdge,
    Profile,
    VariableWord,
    Vocabulary,
    parse_profile,
)
from tenure.kernel.refinement import EntityProof, prove_profile
from tests.profiles.samples import PLAIN

NAMES = profiles.names()
TABLES = [(name, entity) for name in NAMES for entity in ENTITIES]
OWN_TABLES = [(name, entity) for name, entity in TABLES if not profiles.get(name).vocabulary(entity).kernel]


def changed(profile: Profile, entity: Entity, **parts: object) -> Profile:
    vocabulary: Vocabulary = replace(profile.vocabulary(entity), **parts)
    return replace(profile, **{entity: vocabulary})


def with_word(profile: Profile, entity: Entity, state: str, word: str | VariableWord) -> Profile:
    return changed(profile, entity, words={**profile.vocabulary(entity).words, state: word})


def proof_of(profile: Profile, entity: Entity) -> EntityProof:
    return next(e for e in prove_profile(profile).entities if e.entity == entity)


def problems(profile: Profile, entity: Entity) -> str:
    return "\n".join(proof_of(profile, entity).problems)


def single(rows: tuple[DocumentEdge, ...]) -> list[DocumentEdge]:
    """The table as one row per edge."""
    return [replace(row, source=a, target=b) for row in rows for a, b in row.pairs()]


# ---------------------------------------------------------------------------------------- valid profiles


@pytest.mark.parametrize("name", NAMES)
def test_the_proof_passes(name: str) -> None:
    assert prove_profile(profiles.get(name)).problems == ()


@pytest.mark.parametrize(("name", "entity"), TABLES)
def test_every_edge_of_the_table_is_realised(name: str, entity: Entity) -> None:
    proof = proof_of(profiles.get(name), entity)
    assert proof.edges_realised == proof.edges_total > 0


def test_the_number_of_extra_edges_of_each_profile_is_known() -> None:
    """A change here changes what users see: see the reasons in the profile."""
    counts = {
        (name, e.entity): len(e.extra)
        for name in NAMES
        for e in prove_profile(profiles.get(name)).entities
        if e.extra
    }
    assert counts == {
        ("agent-runs", "run"): 2,
        ("approval-runs", "run"): 1,
        ("approval-runs", "step"): 4,
        ("delta-ci", "run"): 3,
        ("delta-ci", "step"): 10,
        ("delta-ci", "attempt"): 7,
        ("governed-runtime", "run"): 6,
        ("governed-runtime", "step"): 7,
    }


def test_every_edge_of_every_machine_is_walked() -> None:
    """With the kernel's own words, each change of word is an edge, so the walk shows what it covers."""
    plain = parse_profile(PLAIN)
    for entity in ENTITIES:
        edges = {(edge.state, edge.next) for edge in MACHINE_OF[entity].edges}
        assert set(refinement.find_word_changes(plain, entity).changes) == edges


@pytest.mark.parametrize("name", NAMES)
def test_a_new_lease_or_attempt_is_a_new_object(name: str) -> None:
    profile = profiles.get(name)
    for entity in ("attempt", "lease"):
        first = profile.word(entity, MACHINE_OF[entity].first)
        assert [
            pair for pair in refinement.find_word_changes(profile, entity).changes if pair[1] == first
        ] == []


# ------------------------------------------------------------------------- changed profiles


@pytest.mark.parametrize(("name", "entity"), OWN_TABLES)
def test_a_dropped_edge_of_the_document_is_found(name: str, entity: Entity) -> None:
    profile = profiles.get(name)
    rows = single(profile.vocabulary(entity).edges)
    for gone in rows:
        fewer = changed(profile, entity, edges=tuple(row for row in rows if row is not gone))
        assert f"{gone.source} -> {gone.target} is shown" in problems(fewer, entity)


@pytest.mark.parametrize(("name", "entity"), OWN_TABLES)
def test_an_unlisted_extra_edge_is_found(name: str, entity: Entity) -> None:
    profile = profiles.get(name)
    lines = [
        replace(line, source=a, target=b)
        for line in profile.vocabulary(entity).extra
        for a, b in line.pairs()
    ]
    for gone in lines:
        fewer = changed(profile, entity, extra=tuple(line for line in lines if line is not gone))
        assert f"{gone.source} -> {gone.target} is shown" in problems(fewer, entity)


@pytest.mark.parametrize(("name", "entity"), OWN_TABLES)
def test_an_edge_that_never_happens_is_a_stale_entry_in_either_list(name: str, entity: Entity) -> None:
    profile = profiles.get(name)
    vocabulary = profile.vocabulary(entity)
    listed = {p for row in (*vocabulary.edges, *vocabulary.indirect, *vocabulary.extra) for p in row.pairs()}
    bogus = [
        pair for pair in product(vocabulary.states, repeat=2) if pair not in listed and pair[0] != pair[1]
    ]
    assert bogus
    for a, b in bogus:
        extra = changed(profile, entity, extra=(*vocabulary.extra, ExtraEdge(a, b, reason="none")))
        assert f"{a} -> {b} is listed as extra but never taken" in problems(extra, entity)
        extra = changed(profile, entity, edges=(*vocabulary.edges, DocumentEdge(a, b)))
        assert f"{a} -> {b} of the document is never taken" in problems(extra, entity)


@pytest.mark.parametrize(
    ("name", "entity", "state", "word", "problem"),
    [
        ("git-with-intent", "run", "retry_wait", "pending", "running -> pending is shown"),
        ("git-with-intent", "run", "waiting_external", "running", "running -> waiting_external of the document is never"),
        ("approval-runs", "run", "waiting_approval", "RUNNING", "WAITING_APPROVAL is never shown"),
        ("approval-runs", "run", "waiting_external", "SUCCEEDED", "SUCCEEDED is terminal but is shown while"),
        ("governed-runtime", "step", "waiting_approval", "ready", "waiting_approval -> ready of the document is never"),
        ("governed-runtime", "run", "canceled", "failed_terminal", "queued -> canceled of the document is never"),
        ("delta-ci", "run", "canceling", "RUNNING", "QUEUED -> CANCEL_REQUESTED of the document is never"),
        ("delta-ci", "step", "retry_wait", "FAILED", "TIMED_OUT -> QUEUED of the document is never"),
        ("delta-ci", "attempt", "stale", "QUEUED", "LEASED -> QUEUED is shown"),
        ("delta-ci", "lease", "released", "COMPLETED", "GRANTED -> COMPLETED is shown"),
        ("agent-runs", "run", "queued", "requested", "requested -> queued of the document is never"),
        ("agent-runs", "step", "leased", "running", "ready -> running is shown"),
    ],
)  # fmt: skip
def test_a_changed_word_is_found(name: str, entity: Entity, state: str, word: str, problem: str) -> None:
    assert problem in problems(with_word(profiles.get(name), entity, state, word), entity)


def test_a_word_that_keeps_the_last_one_is_followed_on_every_path() -> None:
    profile = with_word(profiles.get("delta-ci"), "run", "canceling", VariableWord(keep=True))
    found = problems(profile, "run")
    for word in ("CREATED", "PLANNING", "QUEUED", "RUNNING"):
        assert f"{word} -> CANCELED is shown" in found


def test_a_changed_owner_is_found() -> None:
    profile = profiles.get("delta-ci")
    rows = tuple(
        replace(row, owner="Orchestrator") if (row.source, row.target) == ("RUNNING", "UPLOADING") else row
        for row in profile.step.edges
    )
    found = problems(changed(profile, "step", edges=rows), "step")
    assert found == "RUNNING -> UPLOADING belongs to orchestrator but is made by runner"


def test_a_final_state_without_a_final_word_is_found() -> None:
    profile = changed(profiles.get("git-with-intent"), "run", terminal=("completed", "cancelled"))
    assert (
        "a failed run ends as failed, but in the document failed is neither terminal nor has an edge that leaves it"
        in problems(profile, "run")
    )


# ----------------------------------------------------------------------------------- indirect edges


def test_an_indirect_edge_must_name_existing_moves() -> None:
    profile = profiles.get("delta-ci")
    [line] = profile.run.indirect
    assert "the fact 'no_such_column', which a run does not have" in problems(
        changed(profile, "run", indirect=(replace(line, fact="no_such_column"),)), "run"
    )
    step = profiles.get("approval-runs")
    [line] = step.step.indirect
    assert "the move 'teleport', which the kernel does not have" in problems(
        changed(step, "step", indirect=(replace(line, moves=("expire", "teleport")),)), "step"
    )


def test_the_moves_of_an_indirect_edge_must_lead_to_its_end() -> None:
    profile = profiles.get("approval-runs")
    [line] = profile.step.indirect
    wrong = changed(profile, "step", indirect=(replace(line, moves=("expire",)),))
    assert problems(wrong, "step") == "RUNNING -> RUNNING is not what the moves expire lead to"
    assert proof_of(wrong, "step").edges_realised == proof_of(wrong, "step").edges_total - 1


def test_the_fact_of_an_indirect_edge_must_connect_shown_words() -> None:
    profile = replace(profiles.get("delta-ci"), reported_word=None)
    assert "SUCCESS -> REPORTED leads to a word that is never shown" in problems(profile, "run")
    assert "REPORTED is never shown" in problems(profile, "run")


def test_an_edge_made_by_a_state_change_cannot_be_indirect() -> None:
    profile = profiles.get("agent-runs")
    extra = IndirectEdge("running", "failed", how="", moves=("fail",))
    rows = tuple(row for row in profile.run.edges if row.target != "failed")
    found = problems(changed(profile, "run", edges=rows, indirect=(*profile.run.indirect, extra)), "run")
    assert "running -> failed is listed as indirect, but a change of state makes it" in found


def test_the_proof_walks_the_run_paths_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    fewer = {key: path for key, path in RUN_PATHS.items() if key[1] != "waiting_external"}
    monkeypatch.setattr(refinement, "RUN_PATHS", fewer)
    assert "waiting_external is never shown" in problems(profiles.get("git-with-intent"), "run")
    assert "no change of status shows the run's edge running -await_external-> waiting_external" in (
        refinement.kernel_problems()
    )
