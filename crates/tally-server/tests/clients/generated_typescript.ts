// Uses types that openapi-typescript generated from the description, with openapi-fetch:
// `node generated_typescript.js SERVER`. A field that the description does not have is an error of the compiler.

import createClient from "openapi-fetch";
import type { components, paths } from "./tally.js";

declare const process: { argv: string[] };

function check(holds: boolean, seen: unknown): asserts holds {
  if (!holds) throw new Error(JSON.stringify(seen));
}

const { GET, POST } = createClient<paths>({ baseUrl: process.argv[2] });
const path = { key: "likes:post/42 é" };

const added = await POST("/api/v1/counters/{key}/increment", {
  params: { path, header: { "Idempotency-Key": "order-7731" } },
  body: { amount: 5 },
});
check(added.data?.key === path.key && added.data.value === 5 && added.data.duplicate === false, added);

const read = await GET("/api/v1/counters/{key}", { params: { path, query: { token: added.data.token } } });
check(read.data?.value === 5 && read.data.exists, read);

const refused = await POST("/api/v1/counters/{key}/increment", {
  params: { path },
  body: { amount: 5, ceiling: 6, on_bound: "refuse" },
});
const problem: components["schemas"]["ProblemJson"] | undefined = refused.error;
check(refused.response.status === 409 && problem?.type === "/problems/bound" && problem.value === 5, refused);

// openapi-fetch repeats the name of a list, which `keys` does not take.
const named = await GET("/api/v1/counters", { params: { query: { key: [path.key, "likes:post:43"] } } });
check(named.data?.counters.map((counter) => counter.value).join() === "5,0", named);
console.log("ok");
