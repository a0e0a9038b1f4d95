// A button at each block of code that copies it: of a terminal's the commands, without prompts and without what they print.

function copied(text, isTerminal) {
  const lines = text.replace(/\n+$/, "").split("\n");
  if (!isTerminal || !lines.some((line) => /^\$ /.test(line))) return lines.join("\n");
  const kept = [];
  let goesOn = false;
  let end = null;
  for (const line of lines) {
    const isCommand = !goesOn && end === null && /^\$ /.test(line);
    if (!isCommand && !goesOn && end === null) continue;
    const text = isCommand ? line.slice(2) : line;
    kept.push(text);
    if (end === null) {
      const here = text.match(/<<-?\s*['"]?(\w+)['"]?/);
      end = here ? here[1] : null;
    } else if (text.trim() === end) end = null;
    goesOn = end === null && text.endsWith("\\");
  }
  return kept.join("\n");
}

function addButton(block) {
  const pre = block.querySelector("pre");
  if (!pre) return;
  const isTerminal = block.matches(".highlight-console, .highlight-default");
  const button = document.createElement("button");
  button.className = "copy";
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    const text = copied(pre.textContent, isTerminal);
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  block.append(button);
}

if (typeof document === "undefined") module.exports = { copied };
// Without TLS, except on the own machine, browsers give no access to the clipboard.
else if (navigator.clipboard) document.querySelectorAll("div[class*='highlight-']").forEach(addButton);
