'use strict';
// Several runs side by side: groups of seeds as lines with bands, and their scores as a table.

function comparisonSections(comparison) {
  return comparison.tasks.map((task, number) => taskSection(task, number, comparison.final_evaluations));
}

function taskSection(task, number, finals) {
  const id = 'task-' + number, names = namesOf(task);
  const body = task.groups.map((group, index) => el('tr', {},
    el('th', { scope: 'row' }, el('span', { class: 'legend' }, el('span', {}, el('i', { class: 'c' + (index % 8) }), names[index]))), el('td', { class: 'number' }, group.seeds.map(shown).join(', ')), el('td', { class: 'number' }, spanOf(group.steps)),
    el('td', { class: 'number' }, el('b', {}, figure(group.iqm))), el('td', { class: 'number' }, group.ci95 ? figure(group.ci95[0]) + ' to ' + figure(group.ci95[1]) : '–'),
    el('td', { class: 'number' }, group.reached + ' of ' + group.runs.length), el('td', { class: 'number' }, duration(group.seconds_to_score)), el('td', { class: 'number' }, count(group.steps_to_score)),
    ...task.keys.map((key, place) => el('td', { class: 'value' }, shown(group.values[place])))));
  const heads = ['Group', 'Seeds', 'Steps', 'Score (IQM)', '95 % interval', 'Reached', 'Time to ' + figure(task.score), 'Steps to ' + figure(task.score)];
  const better = task.improvement.map(({ group, over, probability }) => (probability < 0.5 ? [over, group, 1 - probability] : [group, over, probability]))
    .map(([group, over, probability]) => el('li', {}, 'A run of ' + names[group] + ' scores higher than one of ' + names[over] + ' with probability ' + percent(probability) + '.'));
  return section(id, shown(task.env), axisChoice(), el('div', { class: 'charts tall one' }, groupChart(task, names)),
    el('p', { class: 'faint' }, 'Thick: interquartile mean of the seeds, where all have begun and none has ended. Shaded: its 95\u00a0% bootstrap interval. Thin: every seed. Score: mean of the last ' + finals + ' evaluations. ' + ([...runs.values()].some((run) => run.fork) ? 'A fork branches off with the return that the run before it had last. ' : ''),
      ...(task.given ? [] : ['The return to reach is nine tenths of the way from the first evaluations to the best group; ', el('code', {}, 'headrace report --score'), ' sets it.'])),
    wide('Scores', el('table', {}, el('thead', {}, el('tr', {}, heads.map((name, place) => el('th', { scope: 'col', class: place ? 'number' : '' }, name)), task.keys.map((key) => el('th', { scope: 'col' }, el('code', {}, key))))), el('tbody', {}, body))),
    better.length ? el('ul', { class: 'faint plain' }, better) : null);
}

function spanOf(steps) {
  const [least, most] = [Math.min(...steps), Math.max(...steps)].map(count);
  return least === most ? most : least + ' to ' + most;
}

// by two of the settings that differ, by all where two do not tell the groups apart, else also by the runs
function namesOf(task) {
  const short = task.groups.map((group) => nameOf(group, task, 2));
  const names = new Set(short).size === short.length ? short : task.groups.map((group) => nameOf(group, task, task.keys.length));
  // the same settings for another number of steps, or the same seed again
  return names.map((name, index) => (names.filter((other) => other === name).length > 1 ? name + ' (' + task.groups[index].runs.join(', ') + ')' : name));
}

function nameOf(group, task, most) {
  const options = task.keys.filter((key) => key !== 'algorithm.name').slice(0, most).map((key) => key.split('.').pop() + ' ' + shown(group.values[task.keys.indexOf(key)]));
  return [group.algorithm, ...(task.keys.includes('algorithm.name') && new Set(task.groups.map((one) => one.algorithm)).size === task.groups.length ? [] : options)].map(shown).join(', ');
}

function groupChart(task, names) {
  return chart('Return', () => {
    const tables = [], series = [], bands = [];
    task.groups.forEach((group, index) => {
      const curve = group.curves[axis], colour = 'c' + (index % 8), first = series.length;
      series.push({ label: '', kind: 'edge' }, { label: '', kind: 'edge' }, { label: names[index], colour, kind: 'line' });
      if (some(curve.low)) bands.push([first, first + 1, colour]);
      tables.push([curve.x, curve.high, curve.low, curve.iqm, ...curve.each]);
      curve.each.forEach(() => series.push({ label: '', colour, kind: 'thin' }));
    });
    const [x, ...joined] = tables.length > 1 ? uPlot.join(tables) : tables[0];
    series.forEach((one, index) => { one.values = joined[index]; });
    return { x, series, bands };
  });
}
