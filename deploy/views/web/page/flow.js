'use strict';
// The way of experience and weights through a run, with rates; an edge is blocked where the process before or behind it waits.

function flowPicture(run) {
  const { status } = run, up = status.state === 'running', newest = run.newest;
  const replay = newest.replay || {}, learner = newest.learner || {}, evaluator = newest.evaluator && known(newest.evaluator.return_mean) ? newest.evaluator : status.evaluation || {};
  const planned = (status.processes || []).filter((one) => one.role === 'actor'), names = new Set(planned.map((one) => one.name));
  // of an actor that `headrace scale` has removed the last record stays
  const actors = Object.entries(newest).filter(([name]) => name.startsWith('actor-') && (!names.size || names.has(name))).map(([, record]) => record);
  const valuesOf = (name) => actors.map((one) => one[name]).filter(known);
  const sum = (name) => { const found = valuesOf(name); return found.length ? found.reduce((a, b) => a + b, 0) : null; };
  const mean = (name) => { const total = sum(name); return total === null ? null : total / valuesOf(name).length; };
  const actorsWait = Math.max(mean('wait_credit_fraction') || 0, replay.insert_hold_fraction || 0), learnerWaits = learner.data_wait_fraction || 0;
  const blocked = up && Math.max(actorsWait, learnerWaits) > run.waits ? (actorsWait >= learnerWaits ? 'experience' : 'batches') : '';
  const limit = (status.bottleneck || '').split(' ')[0];
  const sent = sum('sent_bytes_per_second'), lag = mean('lag');
  const ratio = known(sent) && sent > 0 ? sum('raw_bytes_per_second') / sent : null;
  const fill = known(replay.items) && replay.capacity ? replay.items / replay.capacity : null;
  const rollouts = known(replay.items) && !known(replay.band_low); // each is learned from once, so that replay is nearly empty whenever one looks
  const evaluates = (status.processes || []).some((one) => one.role === 'evaluator');
  const device = status.learner && status.learner.device ? status.learner.device + (status.learner.precision ? ' · ' + status.learner.precision : '') : '';
  const environments = actors.length && known(actors[0].environments) ? whole(actors[0].environments) + ' environments' : '';
  return el('div', { class: 'flow' },
    node('Actors', whole(planned.length || actors.length), environments, ['simulators', 'inference'].includes(limit)),
    edge('experience', of(count, replay.inserted_steps_per_second, ' steps/s'), blocked === 'experience' ? 'blocked: actors wait ' + percent(actorsWait)
      : of(bytes, sent, '/s') + (ratio > 1.05 ? ', ' + trim(ratio, 1) + '× compressed' : ''), blocked === 'experience'),
    rollouts ? node('Replay', 'rollouts', count(replay.items) + ' of ' + count(replay.capacity) + ' steps of the next batch', limit === 'replay')
      : node('Replay', fill === null ? count(replay.items) : percent(fill) + ' full', known(replay.items) ? count(replay.items) + (replay.capacity ? ' of ' + count(replay.capacity) : '') + ' items' : '', limit === 'replay', fill),
    edge('batches', of(count, replay.sampled_items_per_second, ' items/s'), blocked === 'batches' ? 'blocked: learner waits ' + percent(learnerWaits)
      : known(replay.samples_per_insert) ? figure(replay.samples_per_insert) + ' samples per insert' : '', blocked === 'batches'),
    node('Learner', of(figure, learner.updates_per_second, ' updates/s') || '–', device, limit === 'learner'),
    edge('weights', known(evaluator.policy_version) ? 'v' + evaluator.policy_version : '', '', false),
    node('Evaluator', known(evaluator.return_mean) ? 'return ' + figure(evaluator.return_mean) : evaluates ? 'nothing measured' : 'off', known(evaluator.best_version) ? 'best: v' + evaluator.best_version : ''),
    el('div', { class: 'back' }, el('span', {}, 'weights' + (known(learner.policy_version) ? ' v' + whole(learner.policy_version) : '') + (known(lag) ? ' · actors are ' + figure(lag) + (figure(lag) === '1' ? ' version behind' : ' versions behind') : ''))));
}

const of = (form, value, unit) => (known(value) ? form(value) + unit : '');

function node(name, value, note, limits, fill) {
  return el('div', { class: 'node' + (limits ? ' limits' : '') }, el('b', {}, name), el('span', { class: 'value' }, value), el('small', {}, note || ''),
    known(fill) ? meter(fill) : null, limits ? el('small', {}, 'limits the run') : null);
}

function edge(name, value, note, blocked) {
  return el('div', { class: 'edge' + (blocked ? ' blocked' : '') }, el('span', {}, value), el('div', { class: 'arrow', role: 'img', 'aria-label': name + (blocked ? ', blocked' : '') }), el('small', {}, note));
}

function meter(share) {
  const inner = el('i', {});
  inner.style.width = Math.min(Math.max(share, 0), 1) * 100 + '%';
  return el('div', { class: 'meter' }, inner);
}
