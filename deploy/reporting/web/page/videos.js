'use strict';
// Videos of policies. A server sends them one by one; a report has them inside only where it was asked to.

function videos(run, live) {
  const place = el('div', { class: 'videos' }), note = el('p', { class: 'faint' });
  live(() => {
    const addressOf = (video) => video.data || (run.videoAddress ? run.videoAddress(video.file) : null), missing = run.videos.filter((video) => !addressOf(video));
    place.replaceChildren(...run.videos.map((video) => videoCard(video, addressOf(video))));
    note.textContent = (run.videos.length ? 'One episode each of policies that were the best so far. Best and worst: by the return of this episode, among the videos that are kept. '
      : 'There is no video. With --evaluator.videos 3 the last three are kept, each of a policy that was the best so far. ')
      + (missing.some((video) => video.public) ? 'Named files are in the run’s folder; headrace report --videos puts them into this page, up to 50 MB.'
        : missing.length ? 'Named files are only in the run’s folder, because pictures of this environment may not be published.' : '');
  }, 'videos');
  return section('videos', 'Videos', null, note, place);
}

function videoCard(video, address) {
  const name = sentence(video.roles.join(', ')), facts = 'v' + video.policy_version + ', return ' + figure(video.return);
  const broken = el('p', { class: 'faint', hidden: true }, 'This video cannot be played: it has just been deleted, or the browser does not know its format.');
  const shown = address ? el('video', { src: address, controls: true, loop: true, playsinline: true, preload: 'metadata', 'aria-label': name + ': ' + facts, onerror: () => { broken.hidden = false; } })
    : el('p', {}, el('code', {}, 'videos/' + video.file), el('span', { class: 'faint' }, ' ' + bytes(video.bytes)));
  return el('figure', { class: 'card video' }, shown, broken, el('figcaption', {}, el('b', {}, name), el('span', {}, 'v' + video.policy_version), el('span', {}, 'return ', el('b', {}, figure(video.return)))));
}
