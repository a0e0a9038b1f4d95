/**
 * Evaluate LangGraph filters, and translate a part of them into filters of the API.
 *
 * `matches` decides. The API's conditions only reduce the number of candidates: they hold for every item that matches, with
 * any payload index, and also for some that do not match. So a condition on a number also accepts every value that is not a
 * number: a text may be numeric, and an integer index ignores fractions.
 */

export type Value = { [field: string]: unknown };
type Condition = { [field: string]: unknown };

// Limits of the API.
const MAX_TEXT_CHARS = 1024;
const MAX_CONDITIONS = 64;
const NAME = /^[A-Za-z0-9_-]+$/;
const PRINTABLE = /^(?: |[^\p{C}\p{Z}])+$/u;
const BOUNDS = {
  $gt: (value: number, bound: number) => value > bound,
  $gte: (value: number, bound: number) => value >= bound,
  $lt: (value: number, bound: number) => value < bound,
  $lte: (value: number, bound: number) => value <= bound,
};
const OPERATORS = ["$eq", "$ne", "$in", "$nin", ...Object.keys(BOUNDS)];

/** Return whether a value matches a filter. TypeError: an unknown operator, or a bound that is not a number. */
export function matches(value: Value, filter: Value | undefined): boolean {
  return Object.entries(filter ?? {}).every(([name, condition]) => compare(fieldOf(value, name), condition));
}

/** Return conditions of the API that hold for every value that matches. `path` is that of the value in an item. */
export function prefilter(filter: Value | undefined, path: string): Condition[] {
  return Object.entries(filter ?? {})
    .filter(([name]) => NAME.test(name) && path.length + name.length < MAX_TEXT_CHARS)
    .flatMap(([name, condition]) => [...translate(`${path}.${name}`, plain(condition))])
    .slice(0, MAX_CONDITIONS);
}

function* translate(path: string, condition: unknown): Generator<Condition> {
  if (!isObject(condition)) return yield* equality(path, condition);
  for (const [name, bound] of Object.entries(condition)) {
    if (name === "$eq") yield* equality(path, plain(bound));
    else if (name in BOUNDS && isExact(bound)) yield* range(path, { [name.slice(1)]: bound });
  }
}

function* equality(path: string, value: unknown): Generator<Condition> {
  if (value === null || value === undefined) yield { [path]: null };
  else if (isExact(value)) yield* range(path, { gte: value, lte: value });
  else if (typeof value === "string" && isSearchable(value)) yield { [path]: value };
}

function isSearchable(text: string): boolean {
  return text.length <= MAX_TEXT_CHARS && PRINTABLE.test(text) && text.trim() !== "";
}

/** Yield two conditions: the field is set; it is within the bounds, or an index has no number for it. */
function* range(path: string, bounds: { [name: string]: number }): Generator<Condition> {
  yield { [path]: { ne: null } };
  yield { OR: [{ [path]: bounds }, { NOT: [{ [path]: { gte: Number.MIN_SAFE_INTEGER } }] }] };
}

function isExact(value: unknown): value is number {
  return typeof value === "number" && Math.abs(value) < Number.MAX_SAFE_INTEGER;
}

function compare(value: unknown, given: unknown): boolean {
  const condition = plain(given);
  if (!isObject(condition)) return isEqual(value, condition);
  const names = Object.keys(condition);
  if (names.some((name) => name.startsWith("$"))) return names.every((name) => holds(value, name, condition[name]));
  return isObject(value) && names.every((name) => compare(fieldOf(value, name), condition[name]));
}

function holds(value: unknown, name: string, bound: unknown): boolean {
  if (name === "$eq") return isEqual(value, plain(bound));
  if (name === "$ne") return !isEqual(value, plain(bound));
  if (name === "$in") return Array.isArray(bound) && bound.some((other) => isEqual(value, plain(other)));
  if (name === "$nin") return !Array.isArray(bound) || !bound.some((other) => isEqual(value, plain(other)));
  if (!(name in BOUNDS)) throw new TypeError(`filter: ${name} is no operator: ${OPERATORS.join(", ")}`);
  const [number, limit] = [numberIn(value), numberIn(bound)];
  if (limit === undefined) throw new TypeError(`filter: ${name}: compares numbers, and ${String(bound)} is none`);
  return number !== undefined && BOUNDS[name as keyof typeof BOUNDS](number, limit);
}

/** Return whether two JSON values are equal. A missing value equals null. */
function isEqual(value: unknown, other: unknown): boolean {
  if (Array.isArray(value) && Array.isArray(other)) {
    return value.length === other.length && value.every((entry, place) => isEqual(entry, plain(other[place])));
  }
  if (isObject(value) && isObject(other)) {
    const names = new Set([...Object.keys(value), ...Object.keys(other)]);
    return [...names].every((name) => isEqual(fieldOf(value, name), plain(fieldOf(other, name))));
  }
  return (value ?? null) === (other ?? null);
}

/** Return a field of an object, and not what the object inherits. */
export function fieldOf(value: Value, name: string): unknown {
  return Object.hasOwn(value, name) ? value[name] : undefined;
}

/** Return what JSON makes of a value that renders itself, for example of a Date. */
function plain(value: unknown): unknown {
  const hasRendering = typeof value === "object" && value !== null && "toJSON" in value;
  return hasRendering && typeof value.toJSON === "function" ? value.toJSON() : value;
}

export function isObject(value: unknown): value is Value {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function numberIn(value: unknown): number | undefined {
  const isNumeric = typeof value === "string" ? value.trim() !== "" : ["number", "bigint", "boolean"].includes(typeof value);
  const number = isNumeric ? Number(value) : Number.NaN;
  return Number.isNaN(number) ? undefined : number;
}
