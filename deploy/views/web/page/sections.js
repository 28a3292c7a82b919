'use strict';
// The sections of one run. Each returns its element and registers with `live` what must be done again when the run has news.

const STATES = { running: 'good', ready: 'good', remote: 'good', joined: 'good', leaving: 'warn', paused: 'warn', starting: 'warn', stopping: 'warn', waiting: 'warn', restarting: 'bad', silent: 'bad', failed: 'bad', dead: 'bad' };
const SHOWN_LINES = 1000, MOST_TROUBLES = 6;
const isUp = (status) => status.state === 'running' || status.state === 'paused';
const OVER = new Set(['stopped', 'failed', 'dead', 'unknown']);
const BROKEN = new Set(['failed', 'silent', 'restarting', 'dead']); // of a process
const OPERATING = new Set(['epoch', 'policy_version', 'save_bytes', 'items_per_second', 'processor_fraction', 'compiling', 'send_fraction', 'publish_fraction']); // not about learning
const FORMS = { count, number: figure, percent, bytes };

function runSections(run, live, controls) {
  const figures = [flowSection(run, live), learning(run, live), looking(run, live), videos(run, live), speed(run, live), processes(run, live), replaySection(run, live), learnerSection(run, live), trouble(run, live)].filter(Boolean);
  live(() => { for (const one of figures) one.hidden = !begun(run); });
  return [overview(run, live, controls), ...figures, configuration(run, live), logSection(run, live)];
}

function section(id, title, right, ...children) {
  return el('section', { id, 'aria-labelledby': id + '-title' },
    el('div', { class: 'head' }, el('h2', { id: id + '-title' }, title), right ? el('div', { class: 'right' }, right) : null), ...children);
}

// whether there is anything to show of what a run does
const begun = (run) => run.grid.seconds.length > 0 || run.events.length > 0 || (run.status.processes || []).length > 0;

// a table that scrolls by itself where the page is narrower
const wide = (label, table, kind) => el('div', { class: 'card wide ' + (kind || ''), tabindex: '0', role: 'group', 'aria-label': label }, table);

// an update that waits until its section is near the screen: those of many processes and of the log take a while
function whenNear(made, update) {
  let near = true, late = false; // the first one is done at once
  new IntersectionObserver((entries) => {
    near = entries[entries.length - 1].isIntersecting;
    if (near && late) update();
    late = late && !near;
  }, { rootMargin: '300px' }).observe(made);
  return () => { if (near) update(); else late = true; };
}

const pill = (state) => el('span', { class: 'pill ' + (STATES[state] || '') }, state);

// ---- overview

function overview(run, live, controls) {
  const state = el('span', { class: 'state-line' }), tiles = el('div', { class: 'tiles' }), limit = el('div', { class: 'card limit' }), wrong = el('div', { class: 'card limit bad' });
  const nothing = el('p', { class: 'empty' }, 'This run has no figures yet.');
  live(() => {
    const status = run.status, reason = status.reason ? ' · ' + status.reason : known(status.paused_since) ? ' · since ' + clock(status.paused_since) : '';
    state.replaceChildren(pill(status.state), el('span', { class: 'faint' }, status.env + ' · ' + status.algorithm + reason + (run.fork ? ' · ' + forkOf(run) : '')));
    tiles.replaceChildren(...overviewTiles(run));
    tiles.hidden = !begun(run);
    nothing.hidden = begun(run);
    wrong.replaceChildren(...troubleLines(status));
    wrong.hidden = !wrong.childElementCount;
    const [text, advice] = splitOnce(status.bottleneck || '', ' · ');
    limit.hidden = !text;
    limit.replaceChildren(el('dl', {}, el('div', {}, el('dt', {}, isUp(status) ? 'What limits the run' : 'What limited the run last'), el('dd', {}, text)),
      advice ? el('div', {}, el('dt', {}, 'What to try next'), el('dd', {}, advice)) : null));
  });
  return el('section', { id: 'overview', 'aria-label': 'Overview' }, el('div', { class: 'head' }, el('h1', {}, run.name), state, controls ? controls(live) : null), nothing, tiles, wrong, limit);
}

const forkOf = ({ fork }) => 'fork of ' + fork.run + ' after ' + duration(fork.seconds) + ', step ' + whole(fork.steps);

// a line for each process that is broken now, or of which something bad has been counted
function troubleLines(status) {
  const processes = new Map((status.processes || []).map((one) => [one.name, one]));
  for (const name of Object.keys(status.troubles || {})) if (!processes.has(name)) processes.set(name, { name });
  const lines = [...processes.values()].map((one) => [one.name, [...(BROKEN.has(one.state) ? [one.state, one.last_exit] : []), ...countsOf(status, one)].filter(Boolean)]).filter(([, said]) => said.length);
  if (!lines.length) return [];
  return [el('dl', {}, el('div', {}, el('dt', {}, 'Trouble'),
    lines.slice(0, MOST_TROUBLES).map(([name, said]) => el('dd', {}, el('b', {}, name), ' ' + said.join(' · '))),
    lines.length > MOST_TROUBLES ? el('dd', {}, 'and ' + whole(lines.length - MOST_TROUBLES) + ' more processes') : null))];
}

// counts of what checks have stopped, of one process
const countsOf = (status, one) => Object.entries((status.troubles || {})[one.name] || {}).map(([name, number]) => words(name) + ' ' + whole(number));

function overviewTiles(run) {
  const { status, evaluations } = run, { flow, learner } = status, done = status.total_steps ? status.steps / status.total_steps : null;
  const up = isUp(status), at = (evaluations.seconds || []).length - 1;
  const better = bestOf(evaluations), rate = flow.steps_per_second, left = known(flow.seconds_left) ? ' · about ' + duration(flow.seconds_left) + ' left' : '';
  const tiles = [
    tile('Steps', count(status.steps), done === null ? known(status.steps) ? whole(status.steps) + ' steps' : '' : percent(done) + ' of ' + count(status.total_steps) + left, done),
    tile('Running time', duration(last(run.grid.seconds) === null ? status.uptime_seconds : last(run.grid.seconds) + run.grid.width / 2), up || !status.time ? (known(run.began) ? 'since ' + clock(run.began) : '') : 'until ' + clock(status.time)),
    tile('Return', at < 0 ? '–' : figure(evaluations.return_mean[at]), at < 0 ? 'not evaluated yet' : 'v' + whole(evaluations.policy_version[at])
      + (known(evaluations.return_low[at]) ? ', 95 %: ' + figure(evaluations.return_low[at]) + ' to ' + figure(evaluations.return_high[at]) : '')),
    tile('Best return', better < 0 ? '–' : figure(evaluations.return_mean[better]), better < 0 ? '' : 'v' + whole(evaluations.policy_version[better]) + ' at ' + count(evaluations.steps[better]) + ' steps'),
  ];
  if (some(evaluations.success_rate)) tiles.push(tile('Success', percent(evaluations.success_rate[at]), '95 %: ' + percent(evaluations.success_low[at]) + ' to ' + percent(evaluations.success_high[at])));
  tiles.push(tile('Steps per second', count(rate), up ? (status.state === 'paused' ? 'paused' : 'of all actors') : known(rate) ? 'at the end' : ''));
  tiles.push(tile('Updates per second', figure(flow.updates_per_second), known(learner.epoch) ? 'epoch ' + whole(learner.epoch) : ''));
  return tiles;
}

function tile(label, value, note, share) {
  return el('div', { class: 'card tile' }, el('div', { class: 'label' }, label), el('div', { class: 'value' }, value), el('div', { class: 'note' }, note || ''), known(share) ? meter(share) : null);
}

// the evaluation of the best policy, or of the best one that was recorded: an evaluator may be quicker than its records
function bestOf(evaluations) {
  const means = evaluations.return_mean || [];
  let found = (evaluations.best || []).lastIndexOf(true);
  for (let index = found + 1; index < means.length; index++) if (known(means[index]) && (found < 0 || means[index] > means[found])) found = index;
  return found;
}

function splitOnce(text, by) {
  const at = text.indexOf(by);
  return at < 0 ? [text, ''] : [text.slice(0, at), text.slice(at + by.length)];
}

function flowSection(run, live) {
  const card = el('div', { class: 'card flow-card' });
  const note = el('span', { class: 'faint' });
  live(() => {
    note.textContent = run.status.state === 'running' ? '' : OVER.has(run.status.state) ? 'as it was last' : run.status.state;
    card.replaceChildren(flowPicture(run));
  });
  return section('flow', 'Flow', note, card);
}

// ---- charts

const column = (run, name) => run.grid.figures[name];
const eventsOf = (run) => () => run.events.filter((event) => known(event[axis]));

const gridCharts = (run, place) => run.charts.filter((one) => one.section === place).map((one) => gridChart(run, { floor: 0, ...one }));

// a line for each figure, or one that is the first figure divided by another
function gridChart(run, { title, lines, form, floor, dashed, per }) {
  return chart(title, () => {
    const there = Object.entries(lines).filter(([name]) => some(column(run, name)));
    if (!there.length || (per && !some(column(run, per)))) return null;
    const divisor = per && column(run, per), limits = new Set(dashed);
    const values = (name) => (divisor ? column(run, name).map((value, index) => (known(value) && divisor[index] ? value / divisor[index] : null)) : column(run, name));
    const series = there.map(([name, label], index) => ({ label, values: values(name), colour: limits.has(name) ? 'c7' : 'c' + index, kind: limits.has(name) ? 'dashed' : 'line' }));
    return { x: run.grid[axis], series, floor };
  }, FORMS[form], eventsOf(run));
}

// evaluations, with their interval, and what the actors report, which have other places on the x axis
function evaluatedChart(run, { title, name, training: beside, form }, clicked) {
  return chart(title, () => {
    const { evaluations, grid } = run, values = evaluations[name], training = grid.figures[beside];
    if (!some(values) && !some(training)) return null;
    const series = [], tables = [];
    if (some(values)) {
      const stem = name.replace(/_mean$|_rate$/, ''), low = evaluations[stem + '_low'], high = evaluations[stem + '_high'], table = [evaluations[axis]];
      if (low) { table.push(high, low); series.push({ label: 'high', kind: 'edge' }, { label: 'low', kind: 'edge' }); }
      table.push(values);
      series.push({ label: 'evaluation', colour: 'c0', kind: 'line' });
      if (name === 'return_mean') {
        const marked = bestOf(evaluations);
        table.push(values.map((value, index) => (index === marked ? value : null)));
        series.push({ label: 'best', colour: 'c1', kind: 'points' });
      }
      tables.push(table);
    }
    if (some(training)) {
      tables.push([grid[axis], training]);
      series.push({ label: 'actors, exploring', colour: 'c7', kind: 'thin' });
    }
    const expected = run.reference && run.reference[name] ? upTo(Math.max(last(evaluations[axis]) || 0, last(grid[axis]) || 0), run.reference[axis], run.reference[name]) : [[]];
    if (expected[0].length > 1) {
      tables.push(expected);
      series.push({ label: run.reference.run || 'reference', colour: 'c2', kind: 'dashed' });
    }
    const [x, ...joined] = tables.length > 1 ? uPlot.join(tables.map(strictlyRising)) : tables[0];
    series.forEach((one, index) => { one.values = joined[index]; });
    const band = series.length && series[0].kind === 'edge' ? [[0, 1, 'c0']] : [];
    return { x, series, bands: band, floor: form === 'number' ? undefined : 0 };
  }, FORMS[form], eventsOf(run), clicked);
}

// a curve as far as x = end
function upTo(end, x, y) {
  const more = x.findIndex((at) => at > end);
  if (more < 1) return more < 0 ? [x, y] : [[], []];
  const share = (end - x[more - 1]) / (x[more] - x[more - 1]);
  return [[...x.slice(0, more), end], [...y.slice(0, more), y[more - 1] + share * (y[more] - y[more - 1])]];
}

// a table whose x has no value twice, as joining needs: the last row of equal ones stays
function strictlyRising(table) {
  const kept = table[0].map((x, index) => index).filter((index) => table[0][index] !== table[0][index + 1] && known(table[0][index]));
  return table.map((values) => kept.map((index) => values[index]));
}

function axisChoice() {
  const buttons = [['steps', 'Steps'], ['seconds', 'Time']].map(([name, label]) => el('button', { type: 'button', 'data-axis': name, onclick: () => setAxis(name) }, label));
  const reset = el('button', { type: 'button', onclick: () => setZoom(null) }, 'Show all');
  const update = () => {
    reset.hidden = !zoom;
    for (const button of buttons) button.setAttribute('aria-pressed', String(button.dataset.axis === axis));
  };
  document.addEventListener('zoomed', update);
  update();
  return [reset, el('div', { class: 'choice', role: 'group', 'aria-label': 'Horizontal axis' }, buttons)];
}

function learning(run, live) {
  const note = el('p', { class: 'faint' }), again = el('p', { hidden: true, 'aria-live': 'polite' });
  const clicked = (at) => {
    again.hidden = false;
    again.replaceChildren(...playedAgain(run, Math.max(Math.round(axis === 'steps' ? at : stepsAt(run.grid, at)), 0)));
  };
  live(() => {
    const { reference } = run;
    note.hidden = !run.grid.seconds.length;
    note.replaceChildren('Shaded: 95\u00a0% interval of the evaluation. Vertical lines: what happened to the run. Drag over a chart to look closer, double-click to go back. Click on it for the episode that was played there.',
      ...(reference && reference.run ? [' Dashed: run ' + reference.run + ', of which this one is a fork.'] : reference ? [' Reference: a run of ', el('code', {}, 'headrace up --env ' + reference.env.id), ' without other settings, by ' + reference.algorithm + ', seed ' + reference.seed + ', on ' + reference.cores + ' cores.'] : []));
  });
  return section('learning', 'Learning', axisChoice(), el('div', { class: 'charts tall' },
    run.charts.filter((one) => one.section === 'learning').map((one) => evaluatedChart(run, one, clicked))), again, note);
}

// how to see the episode that ended nearest to a step
function playedAgain(run, step) {
  const kept = Object.entries(run.newest).some(([name, record]) => name.startsWith('replay') && known(record.log_bytes));
  if (!kept) return ['This run keeps no experience, so its episodes cannot be played again.'];
  return ['The episode that ended nearest to step ' + whole(step) + ': ', el('code', { class: 'command' }, 'headrace replay ' + run.name + ' --step ' + step), ' plays it again.'];
}

const speed = (run) => section('speed', 'Speed', null, el('div', { class: 'charts' }, gridCharts(run, 'speed')));
const replaySection = (run) => section('replay', 'Replay', null, el('div', { class: 'charts' }, gridCharts(run, 'replay')));

function learnerSection(run, live) {
  const fixed = gridCharts(run, 'learner'), place = el('div', { class: 'charts small' }, fixed), made = new Map();
  const charted = new Set(run.charts.flatMap((one) => Object.keys(one.lines || {})));
  live(() => {
    const before = made.size;
    for (const name of Object.keys(run.grid.figures)) {
      const own = name.replace(/^learner\./, '');
      // what has been 0 all the time, such as updates that were skipped, has no chart
      if (own === name || charted.has(name) || OPERATING.has(own) || made.has(own) || !column(run, name).some(Boolean)) continue;
      const share = own.endsWith('_fraction');
      made.set(own, gridChart(run, { title: sentence(own), lines: { [name]: words(own) }, form: share ? 'percent' : 'number', floor: share ? 0 : undefined }));
    }
    // by name, not in the order in which the figures came: a run has the same page while it is up and afterwards
    if (made.size > before) place.append(...[...made.keys()].sort().map((own) => made.get(own)), ...fixed);
  });
  return section('learner', 'Learner', null, place);
}

const sentence = (name) => { const text = words(name); return text[0].toUpperCase() + text.slice(1); };

// ---- processes

function processes(run, live) {
  const place = el('div', { class: 'processes' });
  const none = el('p', { class: 'faint' }, 'No process has begun.'), made = section('processes', 'Processes', null, none, place);
  live(whenNear(made, () => {
    place.replaceChildren(...(run.status.processes || []).map((one) => processCard(run, one)), ...hostCards(run.status.hosts || []));
    none.hidden = place.childElementCount > 0;
  }));
  return made;
}

function processCard(run, one) {
  const record = run.newest[one.name] || {}, own = run.actors[one.name];
  const up = !['stopped', 'dead', 'failed'].includes(one.state), facts = [];
  const fact = (name, text) => { if (text && text !== '–') facts.push(el('div', {}, el('dt', {}, name), el('dd', {}, text))); };
  let rate = '', line = null;
  if (one.role === 'actor') {
    rate = count(up ? one.steps_per_second ?? record.steps_per_second : record.steps_per_second) + ' steps/s';
    line = own ? spark(own.figures.steps_per_second) : null;
    fact('lag', figure(record.lag));
    fact('waits', percent(record.wait_credit_fraction));
    fact('return', figure(record.episode_return));
    if ((run.status.steered || []).includes(one.name)) fact('steered', 'by a person');
  } else if (one.role === 'replay') {
    rate = count(record.items) + ' items';
    line = spark(column(run, 'replay.items'));
    if (record.human_steps) fact('by people', count(record.human_steps) + ' steps');
  } else if (one.role === 'learner') {
    rate = figure(record.updates_per_second) + ' updates/s';
    line = spark(column(run, 'learner.updates_per_second'));
    fact('waits', percent(record.data_wait_fraction));
  } else if (one.role === 'inference' && !one.host) {
    const now = run.status.inference || {};
    rate = count(now.rows_per_second) + ' rows/s';
    fact('rows a pass', figure(now.rows_per_pass));
  } else if (one.role === 'evaluator') {
    rate = 'v' + whole(record.policy_version);
    line = spark((run.evaluations.return_mean || []));
    fact('best', known(record.best_version) ? 'v' + record.best_version : '–');
  }
  fact('memory', bytes(one.rss_bytes));
  fact('cpu', known(one.cpu_percent) ? Math.round(one.cpu_percent) + ' %' : '–');
  fact('restarts', one.restarts ? String(one.restarts) : '');
  const why = [...(one.last_exit ? [one.last_exit] : []), ...countsOf(run.status, one)];
  return el('div', { class: 'card process' + (BROKEN.has(one.state) ? ' bad' : '') },
    el('div', { class: 'name' }, el('span', {}, one.name), el('span', { class: 'state ' + (STATES[one.state] || '') }, one.state)),
    el('div', { class: 'rate' }, rate), line, el('dl', {}, facts), why.length ? el('div', { class: 'why' }, why.join(' · ')) : null);
}

// a card for each host, and one for all that are waited for
function hostCards(hosts) {
  const waiting = hosts.filter((one) => one.state === 'waiting'), sum = (name) => waiting.reduce((total, one) => total + one[name], 0);
  const all = [...hosts.filter((one) => one.state !== 'waiting'), ...(waiting.length ? [{ name: waiting.length === 1 ? waiting[0].name : whole(waiting.length) + ' hosts', state: 'waiting', places: sum('places'), actors: sum('actors') }] : [])];
  return all.map((one) => el('div', { class: 'card process' + (BROKEN.has(one.state) ? ' bad' : '') },
    el('div', { class: 'name' }, el('span', {}, one.name), el('span', { class: 'state ' + (STATES[one.state] || '') }, one.state)),
    el('div', { class: 'rate' }, whole(one.actors) + ' of ' + whole(one.places) + ' places'), meter(one.places ? one.actors / one.places : 0)));
}

// ---- trouble

function trouble(run, live) {
  const body = el('tbody', {}), none = el('p', { class: 'faint' }, 'Nothing has been recorded.'), table = wide('What happened',
    el('table', { class: 'stacks events' }, el('thead', {}, el('tr', {}, ['When', 'Steps', 'Process', 'What', 'Why'].map((name) => el('th', { scope: 'col' }, name)))), body));
  live(() => {
    none.hidden = run.events.length > 0;
    table.hidden = !run.events.length;
    body.replaceChildren(...run.events.slice(-200).reverse().map((event) => el('tr', {}, el('td', { class: 'faint' }, clock(event.time)), el('td', { class: 'value' }, count(event.steps)),
      el('td', {}, event.process), el('td', {}, el('span', { class: 'pill ' + (HARD_EVENTS[event.kind] || (event.process === 'supervisor' ? '' : 'warn')) }, words(event.kind))), el('td', { class: 'value' }, event.text))));
  }, 'events');
  return section('events', 'What happened', null, none, table);
}

// ---- log

const LINE = /^(\S+ \S+) ([^|:]{1,24}?)(?: +\| |: )(.*)$/;
const BAD_LINE = /\b(died|killed|abandoned|hung|Traceback|Error|failed|rejected(?! 0\b)|rolled back|not finite)\b/;

function logSection(run, live) {
  const place = el('div', { class: 'card log', tabindex: '0', role: 'log', 'aria-label': 'Log', 'aria-live': 'off' });
  const who = el('select', { 'aria-label': 'Process' }, el('option', { value: '' }, 'All processes'));
  const search = el('input', { type: 'search', placeholder: 'Find in the log', 'aria-label': 'Find in the log' });
  const whole_log = run.searchLog ? el('button', { type: 'button' }, 'Search all of it') : null;
  const note = el('p', { class: 'faint' }), tools = [who, search, whole_log].filter(Boolean);
  let found = null; // what the server has found in the whole log
  const update = () => {
    const atEnd = place.scrollHeight - place.scrollTop - place.clientHeight < 40;
    const lines = (found || run.log).map((text) => ({ text, parts: LINE.exec(text) }));
    const names = [...new Set(lines.map(({ parts }) => (parts ? parts[2].trim() : '')).filter(Boolean))].sort();
    const had = new Set([...who.options].map((option) => option.value));
    for (const name of names) if (!had.has(name)) who.append(el('option', { value: name }, name));
    const wanted = search.value.toLowerCase();
    const kept = lines.filter(({ text, parts }) => (!who.value || (parts && parts[2].trim() === who.value)) && (!wanted || text.toLowerCase().includes(wanted)));
    place.replaceChildren(...kept.slice(-SHOWN_LINES).map(({ text, parts }) => logLine(text, parts, wanted)));
    if (atEnd) place.scrollTop = place.scrollHeight;
    note.textContent = lines.length ? whole(Math.min(kept.length, SHOWN_LINES)) + ' of ' + whole(lines.length) + (found ? ' lines found in the whole log' : ' newest lines') : found ? 'No line of the whole log has this text.' : 'The log is empty.';
    place.hidden = !lines.length;
    for (const one of tools) one.hidden = !run.log.length;
  };
  who.addEventListener('change', update);
  search.addEventListener('input', () => { found = null; update(); });
  if (whole_log) whole_log.addEventListener('click', async () => { found = search.value ? await run.searchLog(search.value) : null; update(); });
  const made = section('log', 'Log', tools, note, place);
  live(whenNear(made, () => { if (!found) update(); }), 'log');
  requestAnimationFrame(() => { place.scrollTop = place.scrollHeight; });
  return made;
}

function logLine(text, parts, wanted) {
  const line = el('div', { class: BAD_LINE.test(text) ? 'bad' : '' });
  if (parts && !wanted) line.append(el('span', { class: 'when' }, parts[1].slice(11) + ' '), el('span', { class: 'who' }, parts[2].trim().padEnd(10) + ' '), parts[3]);
  else if (wanted) {
    let from = 0;
    const small = text.toLowerCase();
    for (let at = small.indexOf(wanted); at >= 0; at = small.indexOf(wanted, from)) {
      line.append(text.slice(from, at), el('mark', {}, text.slice(at, at + wanted.length)));
      from = at + wanted.length;
    }
    line.append(text.slice(from));
  } else line.append(text);
  return line;
}
