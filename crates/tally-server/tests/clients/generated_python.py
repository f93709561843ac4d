"""Uses the client that openapi-python-client generated from the description: `python3 generated_python.py SERVER`."""

import sys

from tally_client import Client
from tally_client.api.corrections import set_
from tally_client.api.counters import batch_increment, increment, read
from tally_client.models import Amount, AtBound, BatchIncrement, BatchItem, ProblemJson, ReadAnswer, SetValue, WriteAnswer

with Client(base_url=sys.argv[1], raise_on_unexpected_status=True) as client:
    key = "likes:post/42 é"
    added = increment.sync(key, client=client, body=Amount(amount=5), idempotency_key="order-7731")
    assert isinstance(added, WriteAnswer), added
    assert (added.key, added.value, added.applied, added.duplicate) == (key, 5, 5, False), added
    again = increment.sync(key, client=client, body=Amount(amount=5), idempotency_key="order-7731")
    assert isinstance(again, WriteAnswer) and (again.value, again.duplicate) == (5, True), again
    empty = increment.sync(key, client=client)
    assert isinstance(empty, WriteAnswer) and empty.value == 6, empty

    reading = read.sync(key, client=client, token=empty.token)
    assert isinstance(reading, ReadAnswer) and (reading.value, reading.exists) == (6, True), reading
    assert reading.created_at <= reading.updated_at, reading

    refused = increment.sync_detailed(
        key, client=client, body=Amount(amount=5, ceiling=10, on_bound=AtBound.REFUSE))
    problem = refused.parsed
    assert refused.status_code == 409 and isinstance(problem, ProblemJson), refused
    assert (problem.type_, problem.status, problem.value) == ("/problems/bound", 409, 6), problem

    largest = set_.sync(key, client=client, body=SetValue(value=2**63 - 1, reason="the largest value"))
    assert isinstance(largest, WriteAnswer) and largest.value == 2**63 - 1, largest
    batch = BatchIncrement(increments=[BatchItem(key=key), BatchItem(key="likes:post:43")])
    results = batch_increment.sync(client=client, body=batch)
    assert (results.succeeded, results.failed) == (1, 1), results
    assert results.results[0].error.type_ == "/problems/overflow", results
print("ok")
