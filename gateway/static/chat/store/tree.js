// The messages of a conversation form a tree: editing and regenerating add branches beside what
// was there. Pure functions over a Map of id to message; each message names its `parent`.

// Returns the messages from the first to `leaf`.
export function pathTo(messages, leaf) {
  const path = [];
  const seen = new Set(); // imported files may hold a circle
  for (let one = messages.get(leaf); one && !seen.has(one.id); one = messages.get(one.parent)) {
    seen.add(one.id);
    path.push(one);
  }
  return path.reverse();
}

// Returns the ids of the children of every message, oldest first; those of the first under null.
export function childrenOf(messages) {
  const children = new Map();
  for (const { id, parent } of messages.values()) {
    const known = messages.has(parent) ? parent : null;
    if (children.has(known)) children.get(known).push(id);
    else children.set(known, [id]);
  }
  const age = (id) => messages.get(id).createdAt;
  for (const ids of children.values()) ids.sort((a, b) => age(a) - age(b));
  return children;
}

// Returns the message where a branch ends, following the newest child each time.
export function leafBelow(children, id) {
  const seen = new Set();
  for (let ids = children.get(id); ids && !seen.has(id); ids = children.get(id)) {
    seen.add(id);
    id = ids[ids.length - 1];
  }
  return id;
}

// Returns a message and all that stand below it.
export function branchOf(children, id) {
  const found = [id];
  for (let i = 0; i < found.length; i++) found.push(...(children.get(found[i]) ?? []));
  return found;
}
