"""Approval: a workflow that asks people, and uses no resources while it waits for them.

    python examples/approval.py

Small refunds are paid immediately. Large ones wait for a person's answer. A waiting run holds neither memory nor a
worker, so "within two days" costs nothing.
"""

import asyncio
import os
import tempfile

import tenure


@tenure.step
async def pay(customer: str, euros: int) -> str:
    """The key is the same in every try of this step, so that the payment service can recognize a repeat."""
    print(f"paying {euros} EUR to {customer} (key {tenure.current().key})")
    return f"{customer} got {euros} EUR"


@tenure.workflow
async def refund(customer: str, euros: int) -> str:
    """Ask for an approval of large refunds. A rejection raises an exception. If it is not caught, it fails the run."""
    if euros > 100:
        try:
            decision = await tenure.approve(
                f"Refund {euros} EUR to {customer}?",
                within="2d",
                show={"customer": customer, "euros": euros, "orders": 7},
            )
        except tenure.ApprovalRejected as no:
            return f"{customer} got nothing: {no.reason}"
        except tenure.ApprovalExpired:
            return f"{customer} got nothing: nobody answered in time"
        print(f"{decision.approver} said yes")
    return await pay(customer, euros)


async def main() -> None:
    async with tenure.Engine() as engine, engine.worker():
        small = await engine.start(refund, "Ada", 20)
        print(await small.result())

        large = [await engine.start(refund, name, euros) for name, euros in (("Bob", 900), ("Eve", 5000))]
        for run in large:
            await run.reaches("waiting_approval")
        for question in await engine.approvals.list():
            print(f"asked: {question.action} {question.question}")

        # Everyone with access to the database can answer: this program, or `tenure approvals approve RUN`.
        bob, eve = large
        await engine.approve(bob.id, approver="grace")
        await engine.reject(eve.id, approver="grace", reason="there was no such order")
        for run in large:
            print(await run.result())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("TENURE_DB", f"{folder}/approval.db")
        asyncio.run(main())
