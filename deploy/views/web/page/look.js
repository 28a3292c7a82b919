'use strict';
// What an actor sees now, and a person who takes it over. Its server is asked only while the section is on the screen; a report has
// no such section.

const LOOK_MS = 1000, STEER_MS = 50, MOST_HELD = 16;

function looking(run, live) {
  if (!run.look) return null;
  const who = el('select', { 'aria-label': 'Actor', hidden: true }), facts = el('p', { class: 'faint' }), place = el('div', { class: 'look' });
  let onScreen = false, asking = false, range = null;
  const wheel = run.steer ? steering((body) => run.steer({ actor: who.value, ...body }), (found) => { range = drawLook(found, facts, place, range); }, (on) => { who.disabled = on; turn(); }) : null;
  const fail = (text) => { facts.textContent = text; place.replaceChildren(); };
  const turn = async () => {
    if (!onScreen || asking || (wheel && wheel.steers())) return; // who steers gets what it sees with each answer
    asking = true;
    const actor = who.value;
    if (!document.hidden) {
      if (!isUp(run.status)) fail('An actor shows what it sees only while the run is up.');
      else if (!actor) fail('There is no actor.');
      else {
        try {
          const found = await run.look(actor);
          if (actor === who.value && !(wheel && wheel.steers())) {
            if (found.message) fail(found.message);
            else range = drawLook(found, facts, place, range);
          }
        } catch { fail('No answer.'); }
      }
    }
    setTimeout(() => { asking = false; turn(); }, actor === who.value ? LOOK_MS : 0);
  };
  who.addEventListener('change', () => { range = null; fail('…'); turn(); });
  live(() => {
    const had = [...who.options].map((option) => option.value), names = (run.status.processes || []).filter((one) => one.role === 'actor').map((one) => one.name);
    if (had.join() === names.join()) return;
    const before = who.value;
    who.hidden = !names.length;
    who.replaceChildren(...names.map((name) => el('option', { value: name }, name)));
    if (names.includes(before)) who.value = before;
  });
  if (wheel) live(() => { wheel.controls.hidden = !isUp(run.status); });
  const made = section('look', 'What the agent sees', who, ...(wheel ? [wheel.controls, wheel.lines] : []), facts, place);
  new IntersectionObserver((entries) => { onScreen = entries[entries.length - 1].isIntersecting; turn(); }).observe(made);
  return made;
}

// returns the least and the greatest figure so far, so that bars keep their scale
function drawLook(found, facts, place, range) {
  facts.textContent = 'First environment of this actor, step ' + whole(found.step) + ' of the episode, return ' + figure(found.return) + ', policy v' + found.policy_version
    + (found.stack > 1 ? '. The policy gets ' + found.stack + ' observations at once, the newest last.' : '.') + (found.steered ? ' A person steers it.' : '');
  const figures = found.actions.map((one) => one.figure).filter(known);
  const [low, high] = found.bounds || [Math.min(...figures, ...(range || [])), Math.max(...figures, ...(range || []))];
  const picture = found.picture ? [el('div', { class: 'card picture' }, el('img', { src: found.picture, alt: 'The environment now' }))] : [];
  place.classList.toggle('large', found.steered && !found.picture); // then the newest frame is what a person steers by
  place.replaceChildren(...picture, ...found.fields.map((field) => (field.frames ? framesOf(field) : entriesOf(field, found.stack))), actionsOf(found, low, high, Math.max(...figures)));
  return figures.length ? [low, high] : range;
}

const ago = (index, stack) => (index === stack - 1 ? 'now' : '−' + (stack - 1 - index));
const titleOf = (field) => el('h3', {}, words(field.name), el('span', { class: 'faint' }, field.shape.length ? ' shape ' + field.shape.join(' × ') : ' one number'));

function framesOf(field) {
  return el('div', { class: 'card' }, titleOf(field), el('div', { class: 'frames' }, field.frames.map((address, index) => el('figure', {},
    el('img', { src: address, alt: words(field.name) + ', ' + ago(index, field.frames.length) }), field.frames.length > 1 ? el('figcaption', {}, ago(index, field.frames.length)) : null))));
}

function entriesOf(field, stack) {
  const rows = field.entries.map((values, index) => el('tr', {}, el('th', { scope: 'row' }, index),
    values.map((value) => el('td', { class: 'number' }, figure(value)))));
  const head = el('thead', {}, el('tr', {}, el('th', { scope: 'col' }, 'Entry'), [...Array(stack).keys()].map((index) => el('th', { scope: 'col', class: 'number' }, stack > 1 ? ago(index, stack) : 'Value'))));
  return el('div', { class: 'card' }, titleOf(field), el('div', { class: 'entries', tabindex: '0', role: 'group', 'aria-label': words(field.name) }, el('table', {}, head, el('tbody', {}, rows))),
    field.more ? el('p', { class: 'faint' }, 'and ' + whole(field.more) + ' more entries') : null);
}

function actionsOf(found, low, high, best) {
  if (!found.actions.length) return el('div', { class: 'card' }, el('h3', {}, 'Actions'), el('p', { class: 'faint' }, 'This policy gives no figures for its actions.'));
  const rows = found.actions.map((one) => el('tr', { class: one.figure === best ? 'best' : '' }, el('th', { scope: 'row' }, one.name),
    el('td', {}, known(one.figure) ? meter(high > low ? (one.figure - low) / (high - low) : 1) : null), el('td', { class: 'number' }, known(one.figure) ? figure(one.figure) : 'not allowed')));
  return el('div', { class: 'card' }, el('h3', {}, 'Actions', el('span', { class: 'faint' }, ' ' + found.kind)), el('table', { class: 'bars' }, el('tbody', {}, rows)));
}

// ---- a person's keys: those that are held go to the actor, and what they lead to comes back

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
      if (!button.isConnected) { give(''); break; } // another run is shown
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
