/** Return the beginning of a text, without half a character at its end. */
export function beginning(text: string, maxChars: number): string {
  return text.slice(0, maxChars).replace(/[\ud800-\udbff]$/, "");
}
