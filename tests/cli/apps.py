"""Source code of apps for the tests of commands."""

APP = '''
"""A release, as code."""
import tenure

tries = 0

@tenure.step(retries=3, backoff=["10ms"], agent="builder")
async def build(ref: str) -> str:
    global tries
    tries += 1
    tenure.log("building", ref=ref)
    tenure.report_cost("acme", "m1", tokens_in=10, tokens_out=5, money=0.01)
    if tries < 2:
        raise ConnectionError("the network is down")
    return f"app:{ref}"

@tenure.step
def tell(image: str) -> None:
    pass

@tenure.workflow
async def NAME(ref: str = "main", ask: bool = False, event: str = "") -> str:
    """Builds, asks, tells."""
    image = await build(ref)
    if ask:
        await tenure.approve(f"Deploy {image}?", show={"image": image})
    if event:
        await tenure.wait(event)
    await tell(image)
    return image

@tenure.step(retries=1, backoff=["10ms"])
async def fetch() -> str:
    raise tenure.Failure("UPSTREAM_UNAVAILABLE", "the source does not answer")

@tenure.workflow(profile="agent-runs")
async def NAME_doomed() -> str:
    return await fetch()

@tenure.workflow
async def NAME_parent() -> str:
    await tenure.now()
    child = await tenure.start(NAME, "child")
    await tenure.sleep(0.01)
    return await child.result()
'''


def app(name: str) -> str:
    """Return the source of an app. Its workflows have unique names, because all tests share one registry."""
    return APP.replace("NAME", name)


YAML = """\
name: greeting
profile: tenure
inputs:
  name: {type: string, default: world}
  loud: {type: boolean, default: false}
steps:
  - id: write
    run: ["echo", "Hello, ${{ inputs.name }} ${{ inputs.loud }}"]
  - id: ok
    approval: {title: "Send it to ${{ inputs.name }}?"}
  - id: send
    run: ["echo", "sent"]
"""
