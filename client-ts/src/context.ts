/** Memories as a section of a prompt. */

/** Return an estimate of the tokens of a text: a quarter of its characters, rounded up. */
export function estimateTokens(text: string): number {
  return Math.ceil([...text].length / 4);
}

/** How `formatContext` measures and renders. */
export interface ContextOptions {
  /** Largest size of the whole text, in the unit of `measure`. */
  limit: number;
  /** Size of a text: characters by default. `estimateTokens`, or your tokenizer, counts tokens. */
  measure?: (text: string) => number;
}

/**
 * Join memories, in their order and one a list item, up to a limit; each is included completely or left out.
 *
 * A memory that does not fit is left out; shorter ones after it may still fit. So are locked memories and empty texts.
 */
export function formatContext(
  memories: Iterable<string | { content?: string | null }>,
  { limit, measure = (text) => [...text].length }: ContextOptions,
): string {
  let text = "";
  for (const memory of memories) {
    const content = (typeof memory === "string" ? memory : (memory.content ?? "")).trim();
    if (!content) continue;
    // Every line break of Unicode, so that no text leaves its item.
    const item = `- ${content.split(/\r\n|[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]/).join("\n  ")}`;
    const longer = text ? `${text}\n${item}` : item;
    if (measure(longer) <= limit) text = longer;
  }
  return text;
}
