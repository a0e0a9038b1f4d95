"""The explorer at `/ui`: pages that show what an agent remembers, why it answered, and which data of a user is stored.

The pages are rendered here and work without JavaScript. Each page sends requests to the API as its caller
(`inner_requests`), so rights, limits and errors are those of the API, and a page can do nothing that the API cannot.
The caller signs in with a token, which the browser keeps in an encrypted cookie for at most an hour (`sessions`).

Threat: texts of memories are written by users, programs and attackers. Templates escape every value and never make a
link, an image or Markdown of one; control characters are shown by their names (`marks`). `pages` has the headers that
forbid foreign scripts and frames. Every form has a token of its session, which other sites cannot know.

Looking counts no access to a memory, and is recorded in the log: `ApiView.record_look`.
"""
