'use strict';
// The configuration of a run beside that of its preset or of another run, and the settings in which several runs differ.

function configuration(run, live) {
  const others = run.others(), rows = el('tbody', {}), heads = el('tr', {}), note = el('p', { class: 'faint' });
  const search = el('input', { type: 'search', placeholder: 'Find a setting', 'aria-label': 'Find a setting' });
  const all = el('button', { type: 'button', 'aria-pressed': 'false' }, 'All settings');
  const choice = el('select', {}, el('option', { value: '' }, 'its preset'), others.map((name) => el('option', { value: name }, 'run ' + name)));
  let compared = besidePreset(run);
  const update = () => {
    const every = all.getAttribute('aria-pressed') === 'true' || search.value !== '', wanted = search.value.toLowerCase();
    const kept = compared.rows.filter((one) => (every || one.differs) && one.key.toLowerCase().includes(wanted));
    rows.replaceChildren(...kept.map((one) => el('tr', { class: one.differs ? 'differs' : '' }, el('td', {}, el('code', {}, one.key)), el('td', { class: 'value' }, shown(one.value)),
      el('td', { class: 'value' + (compared.faint ? ' faint' : '') }, shown(one.other)), compared.faint ? el('td', { class: 'faint' }, one.origin) : null)));
    heads.replaceChildren(...['Setting', ...compared.heads].map((name) => el('th', { scope: 'col' }, name)));
    note.textContent = compared.rows.filter((one) => one.differs).length + ' of ' + compared.rows.length + ' settings ' + compared.note;
  };
  all.addEventListener('click', () => { all.setAttribute('aria-pressed', String(all.getAttribute('aria-pressed') !== 'true')); update(); });
  search.addEventListener('input', update);
  const compare = async () => {
    const name = choice.value;
    try {
      const found = name ? besideRun(run, name, await run.settingsOf(name)) : besidePreset(run);
      if (choice.value !== name) return; // another one has been chosen meanwhile
      compared = found;
      update();
    } catch { note.textContent = 'The settings of run ' + name + ' cannot be read.'; }
  };
  choice.addEventListener('change', compare);
  live(compare, 'settings');
  return section('configuration', 'Configuration', [others.length ? el('label', { class: 'faint' }, 'Compare with ', choice) : null, search, all], note,
    wide('Configuration', el('table', { class: 'stacks settings' }, el('thead', {}, heads), rows)));
}

function besidePreset(run) {
  const rows = run.settings.map((one) => ({ key: one.key, value: one.value, other: one.expected, origin: one.expected === null ? '' : one.origin, differs: one.expected !== null && !equal(one.value, one.expected) }));
  return { rows, heads: ['This run', 'Expected', 'From'], faint: true, note: 'differ from the preset, or where it has none from the default.' };
}

function besideRun(run, name, settings) {
  const own = valuesOf(run.settings), other = valuesOf(settings);
  const rows = keysOf([own, other]).map((key) => ({ key, value: own.get(key), other: other.get(key), differs: !equal(own.get(key), other.get(key)) }));
  return { rows, heads: ['This run', name], faint: false, note: 'differ from those of run ' + name + '.' };
}

// a table of the settings in which runs differ, with a column for each
function differingSettings(all) {
  const known = all.filter((run) => run.settings.length), values = known.map((run) => valuesOf(run.settings)), keys = keysOf(values);
  const differing = keys.filter((key) => values.some((own) => !equal(own.get(key), values[0].get(key))));
  const heads = ['Setting', ...known.map((run) => run.name)].map((name) => el('th', { scope: 'col' }, name));
  return section('settings', 'Settings that differ', null, el('p', { class: 'faint' }, differing.length + ' of ' + keys.length + ' settings differ between these runs.'),
    differing.length ? wide('Settings that differ', el('table', {}, el('thead', {}, el('tr', {}, heads)), el('tbody', {}, differing.map((key) =>
      el('tr', {}, el('th', { scope: 'row' }, el('code', {}, key)), values.map((own) => el('td', { class: 'value' }, shown(own.get(key)))))))), 'pinned') : null);
}

const valuesOf = (settings) => new Map(settings.map((one) => [one.key, one.value]));
const equal = (one, other) => JSON.stringify(one) === JSON.stringify(other);

// every key once, section by section
function keysOf(all) {
  const keys = [...new Set(all.flatMap((own) => [...own.keys()]))], sectionOf = (key) => key.split('.')[0], sections = [...new Set(keys.map(sectionOf))];
  return keys.sort((one, other) => sections.indexOf(sectionOf(one)) - sections.indexOf(sectionOf(other)));
}
