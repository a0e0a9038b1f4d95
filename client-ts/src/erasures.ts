/** Erasure of memories, for one user or the key of an organisation. */
import { optionsOf, type Connection, type WriteOptions } from "./connection.js";
import type { components } from "./generated/api.js";
import { answerOf } from "./problems.js";
import type { ForgetOptions, Preview, Receipt } from "./types.js";

type Body = Partial<components["schemas"]["ForgetIn"]>;

// An erasure of 100,000 memories takes a minute.
const TIMEOUT_MS = 900_000;
const ERASE_A_USER = "to erase the whole user, call forgetEverything";

/** Return the options if they have a condition. TypeError: none, or an empty one; nothing was sent. */
export function narrowed(options: ForgetOptions): ForgetOptions {
  const { filters, older_than, zone } = options;
  const conditions = Object.entries({ filters, older_than, zone }).filter(([name]) => name in options);
  if (conditions.length === 0) throw new TypeError(`filters, older_than or zone is required; ${ERASE_A_USER}`);
  for (const [name, value] of conditions) {
    const isEmpty = !value || (typeof value === "object" && Object.keys(value).length === 0);
    if (isEmpty) throw new TypeError(`${name} is empty: give a condition; ${ERASE_A_USER}`);
  }
  return options;
}

/** Erase memories; return the receipt. */
export async function erase(connection: Connection, agent: string, body: Body, call: WriteOptions): Promise<Receipt> {
  // Without `dry_run` the answer is a receipt.
  return (await sent(connection, agent, body, call)) as Receipt;
}

/** Return what an erasure would erase now. */
export async function preview(connection: Connection, agent: string, body: Body, call: WriteOptions): Promise<Preview> {
  return (await sent(connection, agent, { ...body, dry_run: true }, call)) as Preview;
}

function sent(connection: Connection, agent: string, body: Body, call: WriteOptions): Promise<Receipt | Preview> {
  const options = { ...optionsOf(call), ...connection.patient(TIMEOUT_MS) };
  return answerOf(connection.http.POST("/v1/agents/{agent}/forget", { params: { path: { agent } }, body, ...options }));
}
