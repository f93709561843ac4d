"""Compares a running server with its OpenAPI description: `make schemathesis`.

Run as a program, this starts the server and schemathesis. Loaded by schemathesis as its hooks, it ignores the
differences listed in INTENDED and no others.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

# Check, problem type, pattern of its detail, and why the difference is intended.
INTENDED = [
    ("positive_data_acceptance", "request-id-conflict", "",
     "OpenAPI cannot say that a header and a field of the body must be equal."),
    ("positive_data_acceptance", "idempotency-mismatch", "",
     "Depends on earlier requests: the same id was used with another payload."),
    ("positive_data_acceptance", "invalid-parameter", "use one of them|cannot be combined",
     "OpenAPI cannot say that query parameters exclude each other."),
    ("positive_data_acceptance", "invalid-parameter", "`token` is",
     "A token is opaque, so the description does not say which text is one."),
    ("positive_data_acceptance", "too-stale", "",
     "A token of a write that this server does not have."),
    ("not_a_server_error", "too-stale", "",
     "The same: 503 is the answer to such a token."),
    ("positive_data_acceptance", "invalid-field", "lies above `ceiling`",
     "JSON Schema cannot compare two fields."),
    ("positive_data_acceptance", "invalid-field", "`on_bound` needs",
     "Kept out of the schema: `anyOf` of `required` makes poor generated clients."),
    ("positive_data_acceptance", "invalid-(key|reason|request-id)", r"has \d+ bytes",
     "JSON Schema counts characters, the server counts bytes."),
    ("positive_data_acceptance", "invalid-field", r"floating point `-?\d+\.0`",
     "To JSON Schema 5.0 is an integer. Tally refuses it: whatever wrote it may round above 2^53."),
    ("positive_data_acceptance", "head-too-large", "",
     "JSON Schema cannot limit the length of all keys together."),
    ("negative_data_rejection", "(batch|body|head)-too-large", "",
     "A refusal as well: schemathesis does not expect 413 and 431 for invalid data."),
]

# An item of a batch or of an import that is invalid fails on its own; the whole is answered 200.
BATCH = "/api/v1/counters/batch-increment"
IMPORT = "/api/v1/import"


def is_intended(check, response, case):
    if check == "negative_data_rejection" and case.operation.path == BATCH and response.status_code == 200:
        return response.json()["failed"] > 0
    if check == "negative_data_rejection" and case.operation.path == IMPORT and response.status_code == 200:
        return len(response.json()["failed"]) > 0
    # A counter may be named `batch-increment`, so that path also has the methods of a counter.
    if check == "allow_header_conformance" and case.operation.path == BATCH:
        return response.headers.get("allow") == ["POST,GET,HEAD,PUT,DELETE"]
    if check == "unsupported_method" and case.operation.path == BATCH:
        return response.request.method in ("GET", "HEAD", "PUT", "DELETE")
    try:
        problem = response.json()
        slug, detail = problem["type"].removeprefix("/problems/"), problem["detail"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
    return any(
        check == wanted and re.fullmatch(kind, slug) and re.search(pattern, detail)
        for wanted, kind, pattern, _ in INTENDED
    )


def install_hooks():
    import functools
    import schemathesis.specs.openapi.checks  # Registers the checks of OpenAPI.
    from schemathesis.checks import CHECKS

    for name in CHECKS.get_all_names():
        check = CHECKS.get_one(name)
        if isinstance(check, type):
            continue

        @functools.wraps(check)
        def filtered(ctx, response, case, check=check, name=name):
            return None if is_intended(name, response, case) else check(ctx, response, case)

        CHECKS.register(filtered)


def main(server, *arguments):
    """Starts `server` on a free port with data of its own, and runs schemathesis against it."""
    with tempfile.TemporaryDirectory() as data:
        listen = ["--data", os.path.join(data, "data"), "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TALLY_")}
        command = [server, "serve", *listen]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                              env=environment) as running:
            try:
                said = (re.search(r"listening on\s+(http://\S+)", line) for line in running.stdout)
                address = next((found[1] for found in said if found), None)
                if address is None:
                    sys.exit("the server did not start")
                environment |= {"SCHEMATHESIS_HOOKS": str(pathlib.Path(__file__).resolve())}
                run = [sys.executable, "-m", "schemathesis.cli", "run", f"{address}/openapi.json", *arguments]
                return subprocess.run(run, env=environment, cwd=data).returncode
            finally:
                running.terminate()


if __name__ == "__main__":
    sys.exit(main(os.path.abspath(sys.argv[1]), *sys.argv[2:]))
elif __name__ == "_schemathesis_hooks":
    install_hooks()
