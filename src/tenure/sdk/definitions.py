"""What users define: workflows, steps and tools, and the registry that workers take them from.

Laws:
1. Inside a workflow, calling a step is durable. Anywhere else, also in another step, it is a plain function call.
2. Names are keys in histories: they are checked at the definition, and never made from ids or addresses.
3. A definition has no state of any run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import cached_property, update_wrapper
from types import MethodType
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

from tenure import custom_profiles
from tenure.errors import TenureError
from tenure.kernel import capability, profiles
from tenure.kernel.commands import DEFAULT_PROFILE, StartChild, StepSpec
from tenure.limits import (
    CHECKPOINTS_PER_RUN_MAX,
    LEASE_SECONDS_MAX,
    LEASE_SECONDS_MIN,
    NAME_CHARS_MAX,
    RETRIES_MAX,
    WORKFLOW_STEPS_RECORDED_MAX,
)
from tenure.sdk import options
from tenure.sdk.codec import Codec, Parameters, return_type
from tenure.sdk.context import current_scope
from tenure.sdk.options import Duration

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class StepFunction(Generic[P, R]):
    """A durable step; see law 1."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        retries: int | None = None,
        backoff: Iterable[Duration] | None = None,
        jitter: float | None = None,
        timeout: Duration | None = None,
        progress_within: Duration | None = None,
        idempotent: bool = True,
        resumable: bool = True,
        isolate: Literal["process"] | None = None,
        agent: str | None = None,
    ) -> None:
        self.function = function
        self.name = check_name("step", name or function.__name__)
        what = f"step {self.name!r}"
        self.retries = (
            None if retries is None else options.check_count(what, "retries", retries, 0, RETRIES_MAX, "3")
        )
        self.backoff = options.check_backoff(what, backoff)
        self.jitter = options.check_jitter(what, jitter)
        self.timeout_seconds = options.check_duration(what, "timeout", timeout)
        self.progress_seconds = options.check_duration(what, "progress_within", progress_within)
        options.check_flags(what, idempotent=idempotent, resumable=resumable)
        if isolate not in (None, "process"):
            raise ValueError(f'{what}: isolate must be "process", not {isolate!r}')
        self.idempotent = idempotent
        self.resumable = resumable
        self.isolate = isolate
        self.agent = agent
        self.is_async = is_async(function)
        if isolate and self.is_async:
            raise TypeError(f"{what}: only a plain function can run in its own process")
        self.codec = Codec(return_type(function), f"the result of {what}")
        update_wrapper(self, function)

    @overload
    def __call__(
        self: StepFunction[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the step durably in a workflow, and as a plain function anywhere else.

        An async workflow awaits a plain step too: it runs in a thread.
        """
        scope = current_scope()
        if scope is None:
            return self.function(*args, **kwargs)
        return scope.call(self, args, kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<step {self.name}>"


class Workflow(Generic[P, R]):
    """A workflow written as a function: a run of it runs once, however often its process dies."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        version: str = "1",
        accepts: Iterable[str] = (),
        profile: str = DEFAULT_PROFILE,
        queue: str = "default",
        timeout: Duration | None = None,
        lease: Duration | None = None,
        budget: str | None = None,
        compensate: bool = False,
        steps_max: int = WORKFLOW_STEPS_RECORDED_MAX,
    ) -> None:
        self.function = function
        self.name = check_name("workflow", name or function.__name__)
        what = f"workflow {self.name!r}"
        self.version = check_name("version", version)
        self.accepts = tuple(check_name("version", each) for each in accepts)
        """Older versions whose unfinished runs this code continues (see `tenure.patched`)."""
        custom_profiles.load_custom_profiles()
        self.profile = profiles.get(profile)
        self.queue = queue
        self.timeout_seconds = options.check_duration(what, "timeout", timeout)
        self.lease_seconds = options.check_duration(what, "lease", lease)
        if (
            self.lease_seconds is not None
            and not LEASE_SECONDS_MIN <= self.lease_seconds <= LEASE_SECONDS_MAX
        ):
            raise ValueError(
                f"{what}: lease must be {LEASE_SECONDS_MIN:g} to {LEASE_SECONDS_MAX:g} seconds, not {lease}"
            )
        options.check_flags(what, compensate=compensate)
        self.terms = options.check_terms(what, budget, compensate)
        self.steps_max = options.check_count(
            what, "steps_max", steps_max, 1, CHECKPOINTS_PER_RUN_MAX, "50_000"
        )
        self.is_async = is_async(function)
        self.parameters = Parameters(function, what)
        self.codec = Codec(return_type(function), f"the result of {what}")
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the plain function, to test its logic. `tenure.run` runs it durably."""
        return self.function(*args, **kwargs)

    @cached_property
    def capability(self) -> str:
        """The capability that a worker needs for its runs."""
        return capability.capability(self.queue, capability.flow(self.name, self.version))

    def child(
        self, run_id: int, input_: bytes | None, on_close: Literal["cancel", "leave", "wait"] = "cancel"
    ) -> StartChild:
        """The command that starts a run of this workflow as a child."""
        return StartChild(
            run_id=run_id,
            workflow=self.name,
            code_version=self.version,
            profile=self.profile.name,
            input=input_,
            plan=self.plan,
            on_close=on_close,
            timeout_seconds=self.timeout_seconds,
            terms=self.terms,
        )

    @cached_property
    def plan(self) -> tuple[StepSpec, ...]:
        """The plan of its runs: one leased step that runs the function."""
        return (StepSpec(name="main", kind="body", queue=self.capability, lease_seconds=self.lease_seconds),)

    @property
    def serves(self) -> tuple[str, ...]:
        """The capabilities of a worker with this workflow."""
        versions = (self.version, *self.accepts)
        return tuple(capability.capability(self.queue, capability.flow(self.name, each)) for each in versions)

    def __repr__(self) -> str:
        return f"<workflow {self.name} {self.version}>"


class Tool:
    """A Python callable that workflow files use by name."""

    def __init__(
        self, function: Callable[..., Any], name: str, *, progress_within: Duration | None = None
    ) -> None:
        self.function = function
        self.name = check_name("tool", name)
        self.progress_seconds = options.check_duration(f"tool {name!r}", "progress_within", progress_within)
        self.is_async = is_async(function)
        self.parameters = Parameters(function, f"tool {name!r}")
        self.codec = Codec(return_type(function), f"the result of tool {name!r}")
        update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name}>"


class Registry:
    """Workflows and tools by name. `tenure.workflow` and `tenure.tool` add to the shared `registry`."""

    def __init__(self, *definitions: Workflow[..., Any] | Tool) -> None:
        self.workflows: dict[str, Workflow[..., Any]] = {}
        self.tools: dict[str, Tool] = {}
        for definition in definitions:
            self.add(definition)

    def add(self, definition: Workflow[..., Any] | Tool) -> None:
        """Add a definition. It replaces one with the same name only if both are the same function, defined again."""
        known: dict[str, Any] = self.workflows if isinstance(definition, Workflow) else self.tools
        before = known.get(definition.name)
        if before is not None and _origin(before) != _origin(definition):
            raise TenureError(
                "INVALID_INPUT",
                f"two definitions are named {definition.name!r}: {_origin(before)} and {_origin(definition)}; give one `name=`",
            )
        known[definition.name] = definition

    def __iter__(self) -> Iterator[Workflow[..., Any] | Tool]:
        return iter([*self.workflows.values(), *self.tools.values()])


def _origin(definition: Workflow[..., Any] | Tool) -> str:
    function = inspect.unwrap(definition.function)
    return f"{function.__module__}.{function.__qualname__}"


registry = Registry()


def is_async(function: Callable[..., Any]) -> bool:
    function = inspect.unwrap(function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
    )


_SPECIAL = frozenset("/#[]!|@ ")


def check_name(what: str, name: str) -> str:
    """Refuse a name that cannot be part of keys and capabilities."""
    if not name or len(name) > NAME_CHARS_MAX or not name.isprintable() or _SPECIAL & set(name):
        raise ValueError(
            f"the {what} name {name!r} cannot be used: 1 to {NAME_CHARS_MAX} printable characters without"
            f" blanks and any of {''.join(sorted(_SPECIAL - {' '}))}"
        )
    if name.startswith("<"):
        raise ValueError(f"the {what} {name} needs a name: give it `name=`")
    return name


# ------------------------------------------------------------------------------------------ decorators


class _StepMaker(Protocol):
    def __call__(self, function: Callable[P, R], /) -> StepFunction[P, R]: ...


class _WorkflowMaker(Protocol):
    def __call__(self, function: Callable[P, R], /) -> Workflow[P, R]: ...


@overload
def step(function: Callable[P, R], /) -> StepFunction[P, R]: ...
@overload
def step(
    *,
    name: str | None = None,
    retries: int | None = None,
    backoff: Iterable[Duration] | None = None,
    jitter: float | None = None,
    timeout: Duration | None = None,
    progress_within: Duration | None = None,
    idempotent: bool = True,
    resumable: bool = True,
    isolate: Literal["process"] | None = None,
    agent: str | None = None,
) -> _StepMaker: ...
def step(function: Callable[..., Any] | None = None, /, **given: Any) -> Any:
    """Make a function a durable step.

    Its result is recorded before the next step of its run begins, and then the step is not run again. A failed step is retried `retries`
    times (the profile's number by default) after `backoff`.

    `timeout` limits one try. `progress_within` stops a try that has not called `tenure.current().progress(…)` for that long; it does not
    limit the try as a whole. `idempotent=False`: the start is recorded too, and a run that crashed between start and result ends with
    RUN_RESUME_FAILED instead of running the step twice. `resumable=False`: a replay runs the step again. `isolate="process"`: a plain
    function runs in its own process, which can be killed. `agent` is recorded in the history as the author of the result.
    """

    def make(f: Callable[..., Any]) -> StepFunction[..., Any]:
        options.check_options("step", f, given, StepFunction)
        return StepFunction(f, **given)

    return make if function is None else make(function)


@overload
def workflow(function: Callable[P, R], /) -> Workflow[P, R]: ...
@overload
def workflow(
    *,
    name: str | None = None,
    version: str = "1",
    accepts: Iterable[str] = (),
    profile: str = DEFAULT_PROFILE,
    queue: str = "default",
    timeout: Duration | None = None,
    lease: Duration | None = None,
    budget: str | None = None,
    compensate: bool = False,
    steps_max: int = WORKFLOW_STEPS_RECORDED_MAX,
) -> _WorkflowMaker: ...
def workflow(function: Callable[..., Any] | None = None, /, **given: Any) -> Any:
    """Make a function a workflow. Its parameters are the input, by name; its return value is the run's output.

    Unfinished runs stay with workers of their `version`; a later version takes those that it `accepts`. `lease`: how long a run stays with
    a worker that sends no heartbeat (the profile's length by default). `budget`: what a run may cost, such as "5 USD". `compensate`: if a
    run is canceled, another run undoes its actions. `steps_max`: how many steps a run may record; a run that needs more is parked until
    this is raised.
    """

    def make(f: Callable[..., Any]) -> Workflow[..., Any]:
        options.check_options("workflow", f, given, Workflow)
        made: Workflow[..., Any] = Workflow(f, **given)
        registry.add(made)
        return made

    return make if function is None else make(function)


def tool(name: str, *, progress_within: Duration | None = None) -> Callable[[Callable[..., Any]], Tool]:
    """Register a callable that workflow files use by name: `uses: NAME`. `progress_within` as in `step`."""

    def make(function: Callable[..., Any]) -> Tool:
        made = Tool(function, name, progress_within=progress_within)
        registry.add(made)
        return made

    return make
