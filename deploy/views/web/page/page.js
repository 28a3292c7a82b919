'use strict';
// The page: of runs whose data is inside it, or of a server that sends news.

const COMPARISON = '(comparison)';
const EVERY_RUN_MS = 5000;
const LOG_KEPT = 4000;
const REMOVED = 'this run has been removed';
const UNREACHABLE = 'no connection: the command that serves this page has ended. Trying again …';

const runs = new Map();
let updates = []; // [what, function] of the run that is shown
let shownRun = null;

function newRun(name) {
  return { name, charts: [], status: { state: 'unknown', env: '', algorithm: '', processes: [], troubles: {}, replay: {}, learner: {}, evaluation: {}, flow: {} }, newest: {}, settings: [], reference: null, fork: null, videos: [], events: [], log: [],
    evaluations: {}, actors: {}, grid: { width: 0, seconds: [], steps: [], figures: {} } };
}

// ---- a run's data

function take(run, news) {
  for (const name of ['status', 'newest', 'settings', 'videos', 'evaluations', 'events', 'charts', 'began', 'reference', 'fork']) if (news[name] !== undefined) run[name] = news[name];
  if (news.grid) addBins(run.grid, news.grid);
  for (const [name, own] of Object.entries(news.actors || {})) addBins(run.actors[name] ||= { seconds: [], steps: [], figures: {} }, own);
  for (const event of run.events) event.steps = stepsAt(run.grid, event.seconds);
  if (news.log) run.log = run.log.concat(news.log).slice(-LOG_KEPT);
}

function addBins(grid, news) {
  const cut = (values, more) => (values || []).slice(0, news.from).concat(more);
  grid.width = news.width;
  grid.seconds = cut(grid.seconds, news.seconds);
  if (news.steps) grid.steps = cut(grid.steps, news.steps);
  for (const [name, values] of Object.entries(news.figures)) {
    const before = (grid.figures[name] || []).slice(0, news.from);
    while (before.length < news.from) before.push(null);
    grid.figures[name] = before.concat(values);
  }
}

function stepsAt(grid, seconds) {
  if (!known(seconds)) return null;
  const { seconds: x, steps: y } = grid;
  if (!x.length) return 0;
  let high = x.findIndex((at) => at >= seconds);
  if (high < 0) return y[y.length - 1];
  const x0 = high ? x[high - 1] : 0, y0 = high ? y[high - 1] : 0;
  return y0 + ((y[high] - y0) * (seconds - x0)) / (x[high] - x0 || 1);
}

// ---- what is shown

function show(name, comparison, controls) {
  forgetCharts();
  updates = [];
  shownRun = name;
  zoom = null;
  const main = document.getElementById('main');
  if (name === COMPARISON) {
    document.title = 'Headrace · comparison';
    main.replaceChildren(el('h1', {}, 'Comparison of ' + runs.size + ' runs'), ...(comparison ? comparisonSections(comparison) : []), runTable(), differingSettings([...runs.values()]));
    return;
  }
  const run = runs.get(name);
  document.title = run.name + ' · Headrace';
  main.replaceChildren(...runSections(run, (update, what) => { updates.push([what, update]); update(); }, controls));
}

function refresh(news) {
  for (const [what, update] of updates) if (!what || news[what] !== undefined) update();
  redrawAll();
}

function runTable() {
  const rows = [...runs.values()].map((run) => {
    const { evaluations } = run, better = bestOf(evaluations);
    return el('tr', {}, el('td', {}, el('button', { type: 'button', onclick: () => choose(run.name) }, run.name), run.fork ? el('span', { class: 'faint' }, ' ' + forkOf(run)) : null), el('td', {}, pill(run.status.state)), el('td', {}, run.status.env), el('td', {}, run.status.algorithm),
      el('td', { class: 'number' }, count(run.status.steps)), el('td', { class: 'number' }, figure(last(evaluations.return_mean))), el('td', { class: 'number' }, better < 0 ? '–' : figure(evaluations.return_mean[better])));
  });
  return section('runs', 'Runs', null, wide('Runs', el('table', {}, el('thead', {}, el('tr', {}, ['Run', 'State', 'Environment', 'Algorithm'].map((name) => el('th', { scope: 'col' }, name)),
    ['Steps', 'Return', 'Best return'].map((name) => el('th', { scope: 'col', class: 'number' }, name)))), el('tbody', {}, rows))));
}

let choose = () => {};

function bar(names, current, note) {
  const select = el('select', { 'aria-label': 'Run' }, names.map((name) => el('option', { value: name }, name === COMPARISON ? 'Comparison' : name)));
  select.value = current;
  select.addEventListener('change', () => choose(select.value));
  const links = [['overview', 'Overview'], ['learning', 'Learning'], ...(inside ? [] : [['look', 'Agent']]), ['videos', 'Videos'], ['processes', 'Processes'], ['replay', 'Replay'], ['learner', 'Learner'], ['events', 'Events'], ['configuration', 'Configuration'], ['log', 'Log']];
  document.getElementById('top').replaceChildren(el('div', { class: 'bar' }, el('span', { class: 'brand' }, 'Headrace'), names.length > 1 ? select : null, el('span', { class: 'said', id: 'said', role: 'status' }, note || ''),
    current === COMPARISON ? null : el('nav', { 'aria-label': 'Sections' }, links.map(([id, label]) => el('a', { href: '#' + id }, label)))));
}

const said = () => document.getElementById('said')?.textContent;
const say = (text) => { const place = document.getElementById('said'); if (place && place.textContent !== text) place.textContent = text; };

// ---- a report

function showReport(data) {
  for (const found of data.runs) {
    const run = Object.assign(newRun(found.name), { others: () => [...runs.keys()].filter((name) => name !== found.name), settingsOf: (name) => runs.get(name).settings });
    take(run, found);
    runs.set(run.name, run);
  }
  const names = [...(runs.size > 1 ? [COMPARISON] : []), ...runs.keys()];
  choose = (name) => {
    bar(names, name);
    show(name, data.comparison);
    scrollTo(0, 0);
  };
  choose(names[0]);
  document.getElementById('foot').textContent = 'Report of ' + clock(Math.max(...data.runs.map((run) => run.now)));
}

// ---- a server

function showServer() {
  let source = null, current = null, names = [], beside = [], mayControl = false;
  const api = (what, query) => '/api/' + what + '?' + new URLSearchParams(query);
  const ask = async (what, query) => (await fetch(api(what, query))).json();
  const served = (name) => Object.assign(newRun(name), { searchLog: async (text) => (await ask('search', { run: name, text })).lines,
    others: () => beside.filter((other) => other !== name), settingsOf: async (other) => (await ask('settings', { run: other })).settings, videoAddress: (file) => api('video', { run: name, file }), look: (actor) => ask('look', { run: name, actor }),
    steer: mayControl ? async (body) => (await fetch(api('steer', { run: name }), { ...posted(body), keepalive: true })).json() : null });

  const choices = () => (names.length > 1 ? [...names, COMPARISON] : names);

  const compare = async () => {
    source = null;
    shownRun = COMPARISON;
    const all = await Promise.all(names.map(async (name) => ({ name, settings: (await ask('settings', { run: name })).settings || [] })));
    if (shownRun !== COMPARISON) return; // a run has been chosen meanwhile
    forgetCharts();
    updates = [];
    document.title = 'Headrace · comparison';
    document.getElementById('main').replaceChildren(el('h1', {}, 'Comparison of ' + all.length + ' runs'), differingSettings(all));
    say('');
  };

  choose = (name) => {
    current = name;
    if (source) source.close();
    if (runs.has(shownRun)) runs.delete(shownRun); // its data is sent again when it is chosen again
    history.replaceState(null, '', '?' + new URLSearchParams({ run: name })); // links to sections have the part after #
    bar(choices(), name, 'reading …');
    if (name === COMPARISON) {
      compare().catch(() => say(UNREACHABLE));
      return;
    }
    runs.set(name, served(name));
    shownRun = null; // until its data is here
    listen(name);
  };

  const listen = (name) => {
    let gone = false;
    source = new EventSource(api('events', { run: name }));
    source.addEventListener('whole', (message) => {
      const data = JSON.parse(message.data), at = scrollY, same = shownRun === name, again = same && !gone;
      const run = again ? Object.assign(runs.get(name), newRun(name)) : served(name);
      take(run, data);
      say('');
      if (again) {
        refresh(data); // what is typed, chosen and zoomed stays
        return;
      }
      gone = false;
      runs.set(name, run);
      show(name, null, mayControl ? (live) => controlsOf(run, api, live) : null);
      if (same) scrollTo(0, at);
    });
    source.addEventListener('news', (message) => {
      const news = JSON.parse(message.data);
      take(runs.get(name), news);
      say(news.more ? 'reading …' : '');
      refresh(news);
    });
    // The browser asks again by itself, and gets `whole` when there is a run of this name again.
    source.addEventListener('gone', () => { gone = true; say(REMOVED); });
    source.onerror = () => say(gone ? REMOVED : UNREACHABLE);
  };

  // A browser has six connections to a server, for all its pages: with six that nobody sees, a button would wait for ever.
  document.addEventListener('visibilitychange', () => {
    if (!source) return;
    if (document.hidden) source.close();
    else if (source.readyState === EventSource.CLOSED && names.includes(current)) listen(current);
  });

  const listRuns = async () => {
    try {
      const found = await (await fetch('/api/runs')).json(), before = names.join();
      names = found.runs.map((run) => run.name);
      beside = found.beside;
      mayControl = found.controls;
      if (!names.length) {
        if (source) source.close();
        source = shownRun = null;
        updates = [];
        forgetCharts();
        bar([], '', '');
        document.getElementById('main').replaceChildren(el('p', { class: 'empty' }, 'There is no run yet. Start one: headrace up --env CartPole-v1'));
      } else if (!shownRun && !source) {
        const wanted = new URLSearchParams(location.search).get('run');
        choose(choices().includes(wanted) ? wanted : found.first && names.includes(found.first) ? found.first : names[0]);
      } else {
        if (names.join() !== before) bar(choices(), current, said());
        // An answer that is an error, such as that of a run that is not listed, ends the source for good.
        if (source && source.readyState === EventSource.CLOSED && !document.hidden && names.includes(current)) choose(current);
      }
    } catch { say(UNREACHABLE); }
    setTimeout(listRuns, EVERY_RUN_MS);
  };
  listRuns();
}

const posted = (body) => ({ method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(body) });

function controlsOf(run, api, live) {
  const actors = (run.status.processes || []).filter((one) => one.role === 'actor').length;
  const number = el('input', { type: 'number', min: 1, max: 1024, value: actors || 1, 'aria-label': 'Number of actors' });
  const result = el('span', { class: 'said', role: 'status' });
  const act = async (what, question, body) => {
    if (!(await asked(question))) return;
    result.textContent = '…';
    try {
      const answer = await fetch(api(what, { run: run.name }), posted(body));
      result.textContent = (await answer.json()).message;
    } catch { result.textContent = 'no answer'; }
  };
  const button = (label, what, question) => el('button', { type: 'button', onclick: () => act(what, question, {}) }, label);
  const pause = button('Pause', 'pause', 'Pause run ' + run.name + '? Its processes stay alive and wait.');
  const unpause = button('Go on', 'unpause', 'Let run ' + run.name + ' go on?');
  live(() => {
    pause.hidden = run.status.state === 'paused';
    unpause.hidden = !pause.hidden;
  });
  const buttons = el('div', { class: 'controls' }, pause, unpause, button('Checkpoint', 'checkpoint', 'Write a checkpoint of run ' + run.name + ' now?'),
    button('Evaluate', 'evaluate', 'Evaluate the newest policy of run ' + run.name + ' now?'), el('span', { class: 'pair' }, number,
      el('button', { type: 'button', onclick: () => act('scale', 'Run ' + run.name + ' with ' + number.value + ' actors?', { actors: Number(number.value) }) }, 'Scale')),
    el('button', { type: 'button', class: 'danger', onclick: () => act('stop', 'Stop run ' + run.name + '? Weights and experience are saved; headrace up resumes it.', {}) }, 'Stop'));
  const over = el('span', { class: 'faint' }, 'To resume it: ', el('code', {}, 'headrace up --run ' + run.name));
  live(() => {
    buttons.hidden = OVER.has(run.status.state);
    over.hidden = !buttons.hidden;
  });
  return el('div', { class: 'controls' }, buttons, over, result);
}

function asked(question) {
  return new Promise((resolve) => {
    const dialog = el('dialog', { 'aria-label': 'Confirm' }, el('p', {}, question), el('div', { class: 'buttons' },
      el('button', { type: 'button', onclick: () => dialog.close('') }, 'Cancel'), el('button', { type: 'button', onclick: () => dialog.close('yes') }, 'Yes')));
    dialog.addEventListener('close', () => { resolve(dialog.returnValue === 'yes'); dialog.remove(); });
    document.body.append(dialog);
    dialog.showModal();
  });
}

const inside = document.getElementById('data');
if (inside) showReport(JSON.parse(inside.textContent));
else showServer();
