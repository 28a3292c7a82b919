'use strict';
// A person takes over the first environment of an actor: the keys that are held go there, and what they lead to comes back.

const STEER_MS = 50, MOST_HELD = 16;
const KEY_NAMES = { ArrowLeft: 'left', ArrowRight: 'right', ArrowUp: 'up', ArrowDown: 'down', ' ': 'space', Enter: 'enter', Shift: 'shift', Control: 'ctrl' };

// the name of a key, or none: letters as they are typed, or by their place on keyboards with other letters
function keyName(event) {
  const digit = /^(?:Digit|Numpad)(\d)$/.exec(event.code), place = /^Key([A-Z])$/.exec(event.code);
  if (digit) return digit[1];
  return KEY_NAMES[event.key] || (/^[a-z]$/i.test(event.key) ? event.key : place ? place[1] : '').toLowerCase();
}

// `send` gets keys and returns the answer of the server; `draw` shows it; `changed` is called when steering begins and ends
function steering(send, draw, changed) {
  const held = new Set(), tapped = new Set(), pressed = el('span', { class: 'keys' }), said = el('span', { class: 'said', role: 'status' });
  const lines = el('pre', { class: 'key-lines', hidden: true });
  let person = null; // the random number of this turn at the wheel; null while nobody steers from here
  const button = el('button', { type: 'button', onclick: () => (person === null ? take() : give('')) }, 'Take over');
  const show = () => pressed.replaceChildren(...[...held].map((name) => el('kbd', {}, name)));

  const onKey = (event) => {
    if (event.target.matches('input, textarea')) return;
    if (event.key === 'Escape') return give('');
    const name = keyName(event);
    if (!name || event.altKey || event.metaKey || (event.ctrlKey && name !== 'ctrl')) return;
    event.preventDefault(); // arrows would scroll, and space press a button
    if (event.type === 'keyup') held.delete(name);
    else { held.add(name); tapped.add(name); }
    show();
  };
  const release = () => { held.clear(); show(); };
  const onHidden = () => { if (document.hidden) give('This page was hidden.'); };
  const onLeave = () => give('');
  const listen = (how) => {
    for (const kind of ['keydown', 'keyup']) document[how](kind, onKey, true);
    document[how]('visibilitychange', onHidden);
    window[how]('blur', release);
    window[how]('pagehide', onLeave);
  };

  async function take() {
    const own = person = crypto.getRandomValues(new Uint32Array(1))[0];
    button.textContent = 'Hand back';
    button.setAttribute('aria-pressed', 'true');
    button.blur();
    said.textContent = '…';
    listen('addEventListener');
    changed(true);
    while (person === own) {
      const began = performance.now(), keys = [...new Set([...held, ...tapped])].slice(0, MOST_HELD);
      tapped.clear(); // a key that was released meanwhile has been sent once
      let found;
      try { found = await send({ person, keys }); } catch { found = { message: 'No answer.' }; }
      if (person !== own) break;
      if (found.message) { give(found.message); break; }
      said.textContent = 'You steer. Esc hands back.';
      lines.hidden = !found.keys.length;
      if (lines.textContent !== found.keys.join('\n')) lines.textContent = found.keys.join('\n');
      draw(found);
      await new Promise((done) => setTimeout(done, Math.max(STEER_MS - (performance.now() - began), 0)));
    }
  }

  function give(why) {
    if (person === null) return;
    const own = person;
    person = null;
    listen('removeEventListener');
    release();
    tapped.clear();
    button.textContent = 'Take over';
    button.setAttribute('aria-pressed', 'false');
    lines.hidden = true;
    said.textContent = why;
    changed(false);
    send({ person: own, ends: true }).catch(() => {}); // otherwise the actor notices after a second
  }

  return { controls: el('div', { class: 'controls' }, button, said, pressed), lines, steers: () => person !== null };
}
