"""20 workers, one key: processes share the limits of one account, and each call of the SDK waits for its turn.

Run it: ``python -m examples.twenty_workers``, or with ``--store redis://localhost:6379/0``.  The provider is simulated
on this machine and enforces its limits.  Interactive calls go first; a batch job fills what they leave.
"""

from __future__ import annotations

import argparse
import multiprocessing
import threading
from collections.abc import Iterable
from tempfile import TemporaryDirectory

import openai

from examples.llm_server import Provider, serving
from ratekeeper.outbound import Budget, Meter, Progress, call_options
from ratekeeper.outbound.httpx2 import PacedTransport

PRICES = {"small": (0.25, 2.0), "large": (1.25, 10.0)}  # dollars for a million tokens of input and of output
meter = Meter(PRICES)


def budgets_of(store: str) -> dict[str, Budget]:
    """The limits of the account, a little less than the provider's, as it counts a little later; and those within."""
    account = Budget(
        name="account",
        requests=["5700/minute burst 100", "100000/day"],
        tokens="570000/minute burst 10000",
        store=store,
    )
    return {
        # Interactive calls may use the whole account; a tenant alone at most half of it.
        "interactive": account.child("tenant", tokens="285000/minute burst 10000"),
        # A tenth is always left for them: a batch job fills the rest, but no more.
        "batch": account.child("batch", requests="5130/minute burst 90", tokens="513000/minute burst 9000"),
    }


def client_of(url: str, store: str, budget: Budget) -> openai.OpenAI:
    """A client for one kind of job.  The large model has a limit of its own, within that of its job."""
    large = budget.child("model", key="large", tokens="200000/minute burst 4000")
    transport = PacedTransport(
        budget=lambda call: large if call.model == "large" else budget,
        concurrent=20,
        max_wait=120,
        store=store,
        meter=meter,
    )
    return openai.OpenAI(
        base_url=f"{url}/v1",
        api_key="one key",
        http_client=openai.DefaultHttpxClient(transport=transport),
        max_retries=0,
    )


def work(url: str, store: str, numbers: Iterable[int]) -> Progress:
    """What one worker does: every fifth question comes from a user, the others from a batch."""
    clients = {job: client_of(url, store, budget) for job, budget in budgets_of(store).items()}
    for number in numbers:
        job, tenant = ("interactive", f"tenant {number % 3}") if number % 5 == 0 else ("batch", None)
        with call_options(priority=10 if job == "interactive" else 0, tenant=tenant):
            clients[job].chat.completions.create(
                model="large" if number % 4 == 0 else "small",
                max_tokens=50,
                messages=[{"role": "user", "content": f"question {number}: why?"}],
            )
    for client in clients.values():
        client.close()
    return meter.progress()


def show_progress(every: float = 1.0) -> threading.Event:
    """Print the rate, the wait and the money of this process, until the event is set."""
    done = threading.Event()

    def show() -> None:
        while not done.wait(every):
            print(f"\r{meter}", end="", flush=True)

    threading.Thread(target=show, daemon=True).start()
    return done


def main(store: str, workers: int = 20, questions: int = 400, provider: Provider | None = None) -> Progress:
    provider = provider or Provider(requests=6_000, tokens=600_000)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["openai", "ratekeeper.outbound.httpx2"])  # imported once, not in every worker
    with serving(provider) as url, context.Pool(workers) as pool:
        shares = [(url, store, range(worker, questions, workers)) for worker in range(workers)]
        total = sum(pool.starmap(work, shares), Progress())
    print(f"{total}; the provider answered {provider.answered}, refused {provider.refused}; {provider.tokens} tokens")
    return total


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        parser = argparse.ArgumentParser()
        parser.add_argument("--store", default=f"shm://{folder}/limits")
        parser.add_argument("--workers", type=int, default=20)
        parser.add_argument("--questions", type=int, default=400)
        main(**vars(parser.parse_args()))
