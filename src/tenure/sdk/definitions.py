"""What users define: workflows, steps and tools, and the registry that workers take them from.

Laws:
1. Inside a workflow a step called normally is durable; anywhere else, in another step too, it is the function it was.
2. Names are keys of histories: they are given once, checked when they are given, and never made from ids or addresses.
3. A definition holds no state of any run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import cached_property, update_wrapper
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

from tenure import own_profiles
from tenure.errors import TenureError
from tenure.kernel import capability, profiles
from tenure.kernel.commands import StepSpec
from tenure.limits import (
    LEASE_SECONDS_MAX,
    LEASE_SECONDS_MIN,
    NAME_CHARS_MAX,
    WORKFLOW_STEPS_RECORDED_MAX,
)
from tenure.sdk import options
from tenure.sdk.codec import Codec, Parameters, returns
from tenure.sdk.here import here
from tenure.sdk.options import Duration

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

PROFILE = "tenure"
"""The profile of workflows that name none."""


class Step(Generic[P, R]):
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
        self.retries = options.retries(what, retries)
        self.backoff = options.backoff(what, backoff)
        self.jitter = options.jitter(what, jitter)
        self.timeout_seconds = options.duration(what, "timeout", timeout)
        self.progress_seconds = options.duration(what, "progress_within", progress_within)
        options.flags(what, idempotent=idempotent, resumable=resumable)
        options.one_of(what, "isolate", isolate, ("process",))
        self.idempotent = idempotent
        self.resumable = resumable
        self.isolate = isolate
        self.agent = agent
        self.is_async = is_async(function)
        if isolate and self.is_async:
            raise TypeError(f"step {self.name!r}: a function in a process of its own is a plain one")
        self.codec = Codec(returns(function), f"the result of step {self.name!r}")
        update_wrapper(self, function)

    @overload
    def __call__(
        self: Step[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it: durably inside a workflow, else as the function it is.

        In an async workflow a plain step is awaited too: it runs in a thread.
        """
        scope = here()
        if scope is None:
            return self.function(*args, **kwargs)
        return scope.call(self, args, kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else _Bound(self, instance)

    def __repr__(self) -> str:
        return f"<step {self.name}>"


class _Bound:
    """A step that is a method, of one object."""

    def __init__(self, step: Step[..., Any], instance: object) -> None:
        self._step = step
        self._instance = instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._step(self._instance, *args, **kwargs)


class Workflow(Generic[P, R]):
    """A workflow written as a function: it runs once however often its process dies."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        version: str = "1",
        accepts: Iterable[str] = (),
        profile: str = PROFILE,
        queue: str = "default",
        timeout: Duration | None = None,
        lease: Duration | None = None,
        budget: str | None = None,
        compensate: bool = False,
        steps_max: int = WORKFLOW_STEPS_RECORDED_MAX,
    ) -> None:
        self.function = function
        self.name = check_name("workflow", name or function.__name__)
        self.version = check_name("version", version)
        self.accepts = tuple(check_name("version", each) for each in accepts)
        """Older versions whose unfinished runs this code goes on with (see `tenure.patched`)."""
        own_profiles.load()
        self.profile = profiles.get(profile)
        self.queue = queue
        self.timeout_seconds = options.duration(f"workflow {self.name!r}", "timeout", timeout)
        self.lease_seconds = options.duration(f"workflow {self.name!r}", "lease", lease)
        if (
            self.lease_seconds is not None
            and not LEASE_SECONDS_MIN <= self.lease_seconds <= LEASE_SECONDS_MAX
        ):
            raise ValueError(
                f"workflow {self.name!r}: a lease is {LEASE_SECONDS_MIN:g} to {LEASE_SECONDS_MAX:g} seconds, not {lease}"
            )
        options.flags(f"workflow {self.name!r}", compensate=compensate)
        self.terms = options.terms(f"workflow {self.name!r}", budget, compensate)
        self.steps_max = options.steps_max(f"workflow {self.name!r}", steps_max)
        self.is_async = is_async(function)
        self.parameters = Parameters(function, f"workflow {self.name!r}")
        self.codec = Codec(returns(function), f"the result of workflow {self.name!r}")
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, durable nowhere: for tests of its logic. `tenure.run` runs it for real."""
        return self.function(*args, **kwargs)

    @cached_property
    def capability(self) -> str:
        """The queue text of its runs' bodies."""
        return capability.capability(self.queue, capability.flow(self.name, self.version))

    @cached_property
    def plan(self) -> tuple[StepSpec, ...]:
        """The plan of its runs: one leased step, whose body is the function."""
        return (StepSpec(name="main", kind="body", queue=self.capability, lease_seconds=self.lease_seconds),)

    @property
    def serves(self) -> tuple[str, ...]:
        """The queue texts a worker with this workflow claims from."""
        versions = (self.version, *self.accepts)
        return tuple(capability.capability(self.queue, capability.flow(self.name, each)) for each in versions)

    def __repr__(self) -> str:
        return f"<workflow {self.name} {self.version}>"


class Tool:
    """A Python callable that declared workflows use by its name."""

    def __init__(
        self, function: Callable[..., Any], name: str, *, progress_within: Duration | None = None
    ) -> None:
        self.function = function
        self.name = check_name("tool", name)
        self.progress_seconds = options.duration(f"tool {name!r}", "progress_within", progress_within)
        self.is_async = is_async(function)
        self.parameters = Parameters(function, f"tool {name!r}")
        self.codec = Codec(returns(function), f"the result of tool {name!r}")
        update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """It stays an ordinary function."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name}>"


class Registry:
    """Workflows and tools by name; `tenure.workflow` and `tenure.tool` add to one that all share."""

    def __init__(self, *definitions: Workflow[..., Any] | Tool) -> None:
        self.workflows: dict[str, Workflow[..., Any]] = {}
        self.tools: dict[str, Tool] = {}
        for definition in definitions:
            self.add(definition)

    def add(self, definition: Workflow[..., Any] | Tool) -> None:
        """Take a definition in. One of the same name replaces it only when it is the same function made anew."""
        known: dict[str, Any] = self.workflows if isinstance(definition, Workflow) else self.tools
        before = known.get(definition.name)
        if before is not None and _origin(before) != _origin(definition):
            raise TenureError(
                "INVALID_INPUT",
                f"two of the name {definition.name!r}: {_origin(before)} and {_origin(definition)}; give one `name=`",
            )
        known[definition.name] = definition

    def __iter__(self) -> Iterator[Workflow[..., Any] | Tool]:
        yield from self.workflows.values()
        yield from self.tools.values()


def _origin(definition: Workflow[..., Any] | Tool) -> str:
    function = inspect.unwrap(definition.function)
    return f"{function.__module__}.{function.__qualname__}"


registry = Registry()
"""What decorators add to, and workers serve when nothing else is said."""


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives something to await."""
    function = inspect.unwrap(function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
    )


_SPECIAL = frozenset("/#[]!|@ ")


def check_name(what: str, name: str) -> str:
    """A name that may stand in keys and queues."""
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
    def __call__(self, function: Callable[P, R], /) -> Step[P, R]: ...


class _WorkflowMaker(Protocol):
    def __call__(self, function: Callable[P, R], /) -> Workflow[P, R]: ...


@overload
def step(function: Callable[P, R], /) -> Step[P, R]: ...
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

    Its result is recorded before the next step of its run begins, and it is not run again once it is. A failure is
    tried again `retries` times (the profile's number if it is left out) after `backoff`.

    `timeout` stops a try; `progress_within` stops one that has not called `tenure.current().progress(…)` for so long, however
    long it takes as a whole. `idempotent=False`: its start is recorded too, and a run that crashed between start
    and result ends RUN_RESUME_FAILED instead of doing it twice. `resumable=False`: a replay runs it again.
    `isolate="process"`: a plain function runs in a process of its own, which can be killed. `agent` names who did it in
    the history.
    """

    def make(f: Callable[..., Any]) -> Step[..., Any]:
        options.check_known("step", f, given, Step)
        return Step(f, **given)

    return make if function is None else make(function)


@overload
def workflow(function: Callable[P, R], /) -> Workflow[P, R]: ...
@overload
def workflow(
    *,
    name: str | None = None,
    version: str = "1",
    accepts: Iterable[str] = (),
    profile: str = PROFILE,
    queue: str = "default",
    timeout: Duration | None = None,
    lease: Duration | None = None,
    budget: str | None = None,
    compensate: bool = False,
    steps_max: int = WORKFLOW_STEPS_RECORDED_MAX,
) -> _WorkflowMaker: ...
def workflow(function: Callable[..., Any] | None = None, /, **given: Any) -> Any:
    """Make a function a workflow. Its parameters are its input, by name; what it returns is the run's output.

    Unfinished runs stay with workers of their `version`; a later one takes those it `accepts`. `lease`: how long a run stays
    with a worker that is not heard of (the profile says it if it is left out). `budget`: what a run may cost, such as
    "5 USD". `compensate`: a run that is canceled has its actions undone, by a run of its own. `steps_max`: how many steps a
    run may record; one that comes to more is parked, and goes on when this is raised.
    """

    def make(f: Callable[..., Any]) -> Workflow[..., Any]:
        options.check_known("workflow", f, given, Workflow)
        made: Workflow[..., Any] = Workflow(f, **given)
        registry.add(made)
        return made

    return make if function is None else make(function)


def tool(name: str, *, progress_within: Duration | None = None) -> Callable[[Callable[..., Any]], Tool]:
    """Register a callable under the name by which declared workflows use it: `uses: NAME`. `progress_within` is that of
    `step`."""

    def make(function: Callable[..., Any]) -> Tool:
        made = Tool(function, name, progress_within=progress_within)
        registry.add(made)
        return made

    return make
