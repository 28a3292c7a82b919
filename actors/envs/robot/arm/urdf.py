"""Reads a serial arm of six revolute joints from a URDF file. No simulator and no Gymnasium here.

Each shape of a link is replaced by spheres along its longest axis, because spheres are cheap to check for collision.
"""

from __future__ import annotations

import hashlib
import math
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path
from xml.etree.ElementTree import Element

import numpy as np

from actors.errors import EnvError

OWN_URDF = Path(__file__).parent / "lr_mate_200id.urdf"
JOINTS = 6
MESH_RADIUS = 0.04  # metres: radius of the spheres of a link that has only a mesh, from its joint to the next
MOVING = ("revolute", "continuous", "prismatic", "planar", "floating")
TIPS = ("flange", "tool0", "tcp")  # names of links that are preferred as the end of the chain


@dataclass(frozen=True, eq=False)
class Arm:
    """A chain of six revolute joints. Joint i moves link i + 1; link 0 is fixed. All arrays are float64, in metres and radians.

    rotation [6, 3, 3] and offset [6, 3] are a joint's frame in the frame of the previous joint; axis [6, 3] is its axis; tip [3]
    is the flange in the frame of the last link. lower, upper, speed, effort: [6] limits. The collision spheres: centre [P, 3] in
    the frame of link [P], radius [P].
    """

    path: Path
    name: str
    digest: str
    joints: tuple[str, ...]
    rotation: np.ndarray
    offset: np.ndarray
    axis: np.ndarray
    tip: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    speed: np.ndarray
    effort: np.ndarray
    link: np.ndarray
    centre: np.ndarray
    radius: np.ndarray

    @property
    def home(self) -> np.ndarray:
        """[6] where an episode starts, without its noise: each joint at 0, or at the limit nearest to 0."""
        return np.clip(np.zeros(JOINTS), self.lower, self.upper)


def file_digest(path: Path) -> str:
    """A hash of an arm's file, by which runs and the cache recognise it. Raises EnvError if the file cannot be read."""
    return _digest(_bytes_of(path))


def read_urdf(path: Path = OWN_URDF) -> Arm:
    """Reads an arm. Raises EnvError, with one line that says what is wrong with the file."""
    data = _bytes_of(path)
    try:
        root = ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        raise EnvError(f"{path} is not XML: {error}") from error
    if root.tag != "robot":
        raise EnvError(f"{path} is not a URDF: its outermost element is <{root.tag}>, not <robot>")
    try:
        return _Reader(path, root).arm(_digest(data))
    except (ValueError, TypeError) as error:
        raise EnvError(f"{path}: {error}") from error


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise EnvError(f"cannot read the URDF {path}: {error.strerror}") from error


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class _Reader:
    """The joints and links of one file. Raises ValueError; `read_urdf` adds the path to the message."""

    def __init__(self, path: Path, root: Element) -> None:
        self._path, self._root = path, root
        self._links = {link.get("name", ""): link for link in root.iter("link") if link.get("name")}
        self._into: dict[str, Element] = {}  # link -> the joint whose child it is
        for joint in root.findall("joint"):
            parent, child = (_child(joint, end, _name(joint)).get("link", "") for end in ("parent", "child"))
            for link in (parent, child):
                if link not in self._links:
                    raise ValueError(f"joint {_name(joint)} names link {link!r}, which does not exist")
            if child in self._into:
                raise ValueError(f"link {child} is the child of two joints, {_name(self._into[child])} and {_name(joint)}")
            self._into[child] = joint

    def arm(self, digest: str) -> Arm:
        """The arm; fixed joints are merged into the frames of the others."""
        chain = self._chain()
        moving = [joint for joint in chain if joint.get("type") in MOVING]
        for joint in moving:
            if joint.get("type") not in ("revolute", "continuous"):
                raise ValueError(f"joint {_name(joint)} is {joint.get('type')}; the robot's joints must be revolute")
        if len(moving) != JOINTS:
            plural = "" if len(moving) == 1 else "s"
            raise ValueError(f"has {len(moving)} revolute joint{plural}, the robot needs {JOINTS}")
        rotation, offset, spheres = [], [], []
        frame, number = np.eye(4), 0  # frame of the current link in that of the last joint, and the link's number
        spheres += self._spheres(_link_of(chain[0], "parent"), frame, number)
        for place, joint in enumerate(chain):
            frame = frame @ _origin(joint)
            if joint in moving:
                rotation.append(frame[:3, :3])
                offset.append(frame[:3, 3])
                frame, number = np.eye(4), number + 1
            after = _origin(chain[place + 1])[:3, 3] if place + 1 < len(chain) else np.zeros(3)
            spheres += self._spheres(_link_of(joint, "child"), frame, number, after)
        limits = np.array([_limits(joint) for joint in moving])  # [6, (lower, upper, velocity, effort)]
        link, centre, radius = zip(*spheres, strict=True) if spheres else ((), np.zeros((0, 3)), ())
        lower, upper, speed, effort = limits.T
        return Arm(
            self._path, self._root.get("name", self._path.stem), digest, tuple(map(_name, moving)),
            np.array(rotation), np.array(offset), np.array([_axis(joint) for joint in moving]), frame[:3, 3],
            lower, upper, speed, effort, np.array(link, np.int64), np.array(centre), np.array(radius, np.float64),
        )  # fmt: skip

    def _chain(self) -> list[Element]:
        """The joints from the base to the end with the most moving joints; of several ends one in TIPS, or the farthest."""
        if not self._into:
            raise ValueError("has no joints: there is no chain from a base to a flange")
        best: tuple[tuple[int, bool, int], list[Element]] = ((-1, False, 0), [])
        for end in self._links:
            joints: list[Element] = []
            link = end
            while link in self._into:
                joints.insert(0, self._into[link])
                link = _link_of(joints[0], "parent").strip()
                if len(joints) > len(self._into):
                    raise ValueError(f"the joints form a loop through link {end}; an arm must be a chain")
            rank = (sum(joint.get("type") in MOVING for joint in joints), end in TIPS, len(joints))
            best = max(best, (rank, joints), key=lambda one: one[0])
        return best[1]

    def _spheres(self, link: str, frame: np.ndarray, number: int, after: np.ndarray | None = None) -> list[tuple]:
        """(link number, centre, radius) of the spheres of a link; `after` [3] is the position of the next joint in its frame."""
        for mesh in self._links[link].iter("mesh"):
            self._check_mesh(link, mesh.get("filename", ""))
        spheres = []
        for collision in self._links[link].findall("collision"):
            geometry = _child(collision, "geometry", f"link {link}")
            if len(geometry) and geometry[0].tag == "mesh":
                ends, radius = np.stack([np.zeros(3), np.zeros(3) if after is None else after]), MESH_RADIUS
                place = frame
            else:
                ends, radius = _capsule(geometry, link)
                place = frame @ _origin(collision)
            count = 1 + math.ceil(float(np.linalg.norm(ends[1] - ends[0])) / radius)
            for share in np.linspace(0, 1, count):
                centre = ends[0] + share * (ends[1] - ends[0])
                spheres.append((number, place[:3, :3] @ centre + place[:3, 3], radius))
        return spheres

    def _check_mesh(self, link: str, filename: str) -> None:
        """Raises ValueError for a mesh that is in none of the folders from the file's own up to the root."""
        plain = filename.removeprefix("file://")
        package, _, inside = plain.removeprefix("package://").partition("/")
        wanted = [plain] if plain == filename or filename.startswith("file://") else []
        if filename.startswith("package://"):
            wanted = [f"{package}/{inside}", inside]
        folders = [self._path.parent, *self._path.resolve().parents]
        if not filename or not any((folder / name).is_file() for folder in folders for name in wanted):
            raise ValueError(f"link {link} needs the mesh {filename!r}, which does not exist")


def _capsule(geometry: Element, link: str) -> tuple[np.ndarray, float]:
    """The ends of the axis [2, 3] and the radius of the capsule that replaces a primitive shape."""
    if not len(geometry):
        raise ValueError(f"link {link} has a shape without geometry")
    shape, ends = geometry[0], np.zeros((2, 3))
    if shape.tag == "sphere":
        return ends, _number(shape, "radius", link)
    if shape.tag in ("cylinder", "capsule"):
        radius, length = _number(shape, "radius", link), _number(shape, "length", link)
        half = length / 2 if shape.tag == "capsule" else max(length / 2 - radius, 0.0)
        ends[:, 2] = -half, half
        return ends, radius
    if shape.tag == "box":
        size = _vector(shape, "size", "0 0 0")
        longest = int(size.argmax())
        radius = float(np.delete(size, longest).max()) / 2
        if radius <= 0:
            raise ValueError(f"link {link} has a box without a size")
        ends[:, longest] = np.array([-1, 1]) * max(size[longest] / 2 - radius, 0.0)
        return ends, radius
    raise ValueError(f"link {link} has an unknown shape <{shape.tag}>; supported are sphere, cylinder, capsule, box and mesh")


def _number(element: Element, key: str, where: str) -> float:
    """A required attribute above 0."""
    text = element.get(key)
    if text is None or not (math.isfinite(float(text)) and float(text) > 0):
        raise ValueError(f"{where} needs a <{element.tag} {key}=…> above 0, not {text}")
    return float(text)


def _vector(element: Element, key: str, default: str) -> np.ndarray:
    values = np.array([float(part) for part in element.get(key, default).split()])
    if values.shape != (3,) or not np.isfinite(values).all():
        raise ValueError(f"<{element.tag} {key}={element.get(key)!r}> must be three numbers")
    return values


def _origin(element: Element) -> np.ndarray:
    """[4, 4] of an element's <origin>: xyz, and rpy about the fixed axes x, y, z in that order."""
    frame = np.eye(4)
    found = element.find("origin")
    if found is not None:
        frame[:3, 3] = _vector(found, "xyz", "0 0 0")
        (sr, sp, sy), (cr, cp, cy) = (function(_vector(found, "rpy", "0 0 0")) for function in (np.sin, np.cos))
        frame[:3, :3] = [
            [cy * cp, cy * sp * sr - sy * cr, cy * sp * cr + sy * sr],
            [sy * cp, sy * sp * sr + cy * cr, sy * sp * cr - cy * sr],
            [-sp, cp * sr, cp * cr],
        ]
    return frame


def _axis(joint: Element) -> np.ndarray:
    found = joint.find("axis")
    axis = np.array([1.0, 0.0, 0.0]) if found is None else _vector(found, "xyz", "1 0 0")
    length = float(np.linalg.norm(axis))
    if not length:
        raise ValueError(f"joint {_name(joint)} has an axis of length 0")
    return axis / length


def _limits(joint: Element) -> tuple[float, float, float, float]:
    """Lower, upper, velocity, effort."""
    found, name = joint.find("limit"), _name(joint)
    if found is None or (joint.get("type") == "continuous" and found.get("lower") is None):
        raise ValueError(f"joint {name} has no limits: it needs <limit lower=… upper=… velocity=… effort=…/>")
    for key in ("lower", "upper", "velocity"):
        if found.get(key) is None:
            raise ValueError(f"joint {name} has no {key} in its <limit>")
    lower, upper = float(found.get("lower", "")), float(found.get("upper", ""))
    if not (math.isfinite(lower) and math.isfinite(upper) and lower < upper):
        raise ValueError(f"joint {name}: the lower limit must be below the upper one, not {lower:g} and {upper:g}")
    return lower, upper, _number(found, "velocity", f"joint {name}"), _number(found, "effort", f"joint {name}")


def _name(joint: Element) -> str:
    return joint.get("name", "without a name")


def _child(element: Element, tag: str, where: str) -> Element:
    found = element.find(tag)
    if found is None:
        raise ValueError(f"{where} has no <{tag}>")
    return found


def _link_of(joint: Element, end: str) -> str:
    return _child(joint, end, _name(joint)).get("link", "")
